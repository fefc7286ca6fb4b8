"""A user's own images: CIFAR-10 as its authors pack it, ImageNet's layout, or a folder a class."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from pipekit.datasets.dataset import Batch
from pipekit.datasets.handwriting import ShiftedImages

CIFAR = "cifar-10-batches-py"
TEST_SHARE = 0.2
"""Of a folder that has no test images of its own."""


def image_folder(
    path: Path | str,
    pixels: int = 32,
    shift: int = 2,
    most: int = 50_000,
    seed: int = 0,
) -> ShiftedImages:
    """Return the colour images of a folder in one size, held in memory; nothing is fetched.

    The folder has ``cifar-10-batches-py`` (CIFAR-10 for Python, unpacked), or ``train`` and ``val``
    with a folder a class in each (ImageNet's layout), or a folder a class; of the last a fifth of
    the images is to test on.

    Args:
        path: the folder.
        pixels: of an image's side: the shorter one is scaled to it, and the middle is kept.
        shift: the most pixels by which a training image is shifted, each time anew.
        most: images to learn from, at most, and a fifth as many to test on; 32 pixels take 12 kB.
        seed: chooses them.

    Raises:
        ValueError: the folder has none of these, or its images cannot be read.
    """
    from torchvision.datasets import CIFAR10, ImageFolder  # here, since it takes a second

    path = Path(path).expanduser()
    path = path.parent if path.name == CIFAR else path
    generator = torch.Generator().manual_seed(seed)
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
    orders = [torch.randperm(len(part), generator=generator) for part in parts]
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
    return ShiftedImages(path.name, str(path), *train, *test, shift=shift)


def _loaded(images: Any, chosen: list[int], pixels: int) -> Batch:
    pairs = [images[index] for index in chosen]
    inputs = [_squared(image, pixels) for image, _ in pairs]
    classes = torch.tensor([target for _, target in pairs], dtype=torch.long)
    return torch.stack(inputs) if inputs else torch.empty(0, 3, pixels, pixels), classes


def _squared(image: Any, pixels: int) -> Tensor:
    """Return ``[3, p, p]`` in 0..1: the middle of an image, scaled."""
    from torchvision.transforms.functional import pil_to_tensor

    tensor: Tensor = pil_to_tensor(image.convert("RGB")).float() / 255  # [3, h, w]
    _, height, width = tensor.shape
    side = min(height, width)
    top, left = (height - side) // 2, (width - side) // 2
    middle = tensor[None, :, top : top + side, left : left + side]
    if side != pixels:
        middle = F.interpolate(middle, size=(pixels, pixels), mode="bilinear", antialias=True)
    return middle[0]
