"""The papers' networks by name, each with an input of the papers' size."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.types import Device

from pipekit.models.bert import bert_large
from pipekit.models.gpt import LAYOUTS, gpt
from pipekit.models.s2vt import s2vt
from pipekit.models.vision import alexnet, inception_v3, resnet50, resnet101, vgg16


class _Build(Protocol):
    def __call__(self, *, device: Device = None) -> nn.Sequential: ...


@dataclass(frozen=True)
class Published:
    """A network as a paper used it.

    Attributes:
        build: makes it, on the ``device`` given.
        sample: makes an input of so many rows, at random, on PyTorch's default device.
    """

    build: _Build
    sample: Callable[[int], Any]


def _images(pixels: int) -> Callable[[int], Tensor]:
    return lambda rows: torch.rand(rows, 3, pixels, pixels)


def _tokens(vocabulary: int, length: int = 512) -> Callable[[int], Tensor]:
    return lambda rows: torch.randint(vocabulary, (rows, length))


def _video(rows: int) -> tuple[Tensor, Tensor]:
    """Return 60 frames and 20 words: S2VT unrolls to 80 steps; how they divide is ours."""
    return torch.rand(rows, 60, 4096), torch.randint(12_594, (rows, 20))


PUBLISHED: Mapping[str, Published] = MappingProxyType(
    {
        "alexnet": Published(alexnet, _images(224)),
        "vgg16": Published(vgg16, _images(224)),
        "resnet50": Published(resnet50, _images(224)),
        "resnet101": Published(resnet101, _images(224)),
        "inception-v3": Published(inception_v3, _images(299)),
        "s2vt": Published(s2vt, _video),
        **{
            f"gpt-{size}": Published(partial(gpt, *layout), _tokens(51_200))
            for size, layout in LAYOUTS.items()
        },
        "bert-large": Published(bert_large, _tokens(30_522)),
    }
)
"""By name, for command lines and scripts; the papers' batch sizes are not part of it."""
