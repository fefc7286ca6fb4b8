"""The U-Net of torchgpipe's benchmarks: long skips from the way down to the way up."""

from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.types import Device

from pipekit.layers.skips import Skippable
from pipekit.models.devices import on

DEPTH = 5  # how often the image is halved, and doubled again (torchgpipe, section 4.2.2)


def unet(convolutions: int, channels: int, device: Device = None) -> nn.Sequential:
    """Return a U-Net (B, C) for segmentation, of ``11 (B + 1)`` layers.

    Images are ``[N, 3, H, W]``, H and W multiples of 32 and at least 64; the output is
    ``[N, 1, H, W]``.

    - the way down, for i = 0 to 4: B convolutions to ``[N, C 2^i, H/2^i, W/2^i]``, which is
      stashed, and a max-pool
    - the bottom: B convolutions, by way of 32 C channels, to ``[N, 16 C, H/32, W/32]``
    - the way up, for i = 4 to 0: upsampling, to which what was stashed is joined, and B
      convolutions to ``[N, C 2^(i-1), H/2^i, W/2^i]``, C/2 rounded down
    - a 1x1 convolution to one channel

    Each convolution is one layer with its dropout, norm and leaky ReLU.

    Args:
        convolutions, channels: B, of each of the 11 cells; C, of the first convolution.
        device: where the weights are made; "meta" for shapes without data.

    Raises:
        ValueError: there would be no convolution, or no channel at the end.
    """
    if convolutions < 1:
        raise ValueError(f"a cell needs at least 1 convolution, not {convolutions}")
    if channels < 2:
        raise ValueError(
            f"channels must be at least 2, since the last cell has half as many, not {channels}"
        )
    widths = [channels * 2**level for level in range(DEPTH)]
    bottom = widths[-1]
    layers: list[nn.Module] = []
    with on(device):
        for level, (before, after) in enumerate(pairwise([3, *widths])):
            layers += _cell(convolutions, before, after, after)
            layers.append(_Down().isolate(f"level {level}"))
        layers += _cell(convolutions, bottom, 2 * bottom, bottom)
        for level, width in reversed(list(enumerate(widths))):
            layers.append(_Up().isolate(f"level {level}"))
            layers += _cell(convolutions, 2 * width, width // 2, width // 2)
        layers.append(nn.Conv2d(channels // 2, 1, 1, bias=False))
        return nn.Sequential(*layers)


def _cell(convolutions: int, before: int, inner: int, after: int) -> list[nn.Module]:
    """Return convolutions from ``before`` channels, by way of ``inner`` ones, to ``after``."""
    widths = [before, *[inner] * (convolutions - 1), after]
    return [_Convolution(entering, leaving) for entering, leaving in pairwise(widths)]


class _Convolution(nn.Sequential):
    def __init__(self, before: int, after: int) -> None:
        super().__init__(
            nn.Conv2d(before, after, 3, padding=1, bias=False),
            nn.Dropout2d(0.1),
            nn.InstanceNorm2d(after),
            nn.LeakyReLU(),
        )


class _Down(Skippable):
    stashes = ("skip",)

    def forward(self, x: Tensor) -> Tensor:
        self.stash("skip", x)
        return F.max_pool2d(x, 2)  # [N, c, H/2, W/2]


class _Up(Skippable):
    pops = ("skip",)

    def forward(self, x: Tensor) -> Tensor:
        x = F.interpolate(x, scale_factor=2.0)  # [N, c, 2 H, 2 W]
        return torch.cat([x, self.pop("skip")], dim=1)  # [N, 2 c, 2 H, 2 W]
