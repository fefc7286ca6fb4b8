"""The papers' networks by name, each with an input of the papers' size."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn

from pipekit.models.amoebanet import amoebanet_d
from pipekit.models.s2vt import s2vt
from pipekit.models.transformer import LAYOUTS, bert_large, gpt
from pipekit.models.unet import unet
from pipekit.models.vision import alexnet, inception_v3, resnet50, resnet101, vgg16


@dataclass(frozen=True)
class Published:
    """A network as a paper used it.

    ``build`` makes it, on the ``device`` given; ``sample`` makes an input of so many rows, at
    random, on PyTorch's default device.
    """

    build: Callable[..., nn.Sequential]
    sample: Callable[[int], Any]


def _images(pixels: int) -> Callable[[int], Tensor]:
    return lambda rows: torch.rand(rows, 3, pixels, pixels)


def _tokens(vocabulary: int, length: int = 512) -> Callable[[int], Tensor]:
    return lambda rows: torch.randint(vocabulary, (rows, length))


# (L, F) of GPipe's Table 1 and torchgpipe's Table 2; (B, C) of torchgpipe's Tables 3 and 4.
_AMOEBANETS = [(18, 208), (18, 256), (18, 416), (18, 544), (36, 544), (72, 512)]
_UNETS = [(5, 64), (6, 72), (11, 128), (24, 128), (24, 160), (48, 160)]

PUBLISHED: Mapping[str, Published] = MappingProxyType(
    {
        "alexnet": Published(alexnet, _images(224)),
        "vgg16": Published(vgg16, _images(224)),
        "resnet50": Published(resnet50, _images(224)),
        "resnet101": Published(resnet101, _images(224)),
        "inception-v3": Published(inception_v3, _images(299)),
        # 60 frames and 20 words: S2VT unrolls to 80 steps; how they divide is ours.
        "s2vt": Published(
            s2vt, lambda rows: (torch.rand(rows, 60, 4096), _tokens(12_594, 20)(rows))
        ),
        **{
            f"gpt-{size}": Published(partial(gpt, *layout), _tokens(51_200))
            for size, layout in LAYOUTS.items()
        },
        "bert-large": Published(bert_large, _tokens(30_522)),
        **{
            f"amoebanet-d-{layers}-{filters}": Published(
                partial(amoebanet_d, layers, filters), _images(224)
            )
            for layers, filters in _AMOEBANETS
        },
        **{
            f"unet-{convolutions}-{channels}": Published(
                partial(unet, convolutions, channels), _images(192)
            )
            for convolutions, channels in _UNETS
        },
    }
)
"""By name, for command lines and scripts; the papers' batch sizes are not part of it."""
