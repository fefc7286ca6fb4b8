"""AmoebaNet-D, the convolutional network that GPipe and torchgpipe scale up."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.types import Device

from pipekit.models.devices import on

Pair = tuple[Tensor, Tensor]


def amoebanet_d(
    layers: int, filters: int, classes: int = 1000, device: Device = None
) -> nn.Sequential:
    """Return AmoebaNet-D (L, F) as a sequence of ``L + 6`` layers.

    Images are ``[B, 3, H, W]``, logits ``[B, classes]``; both papers use 224 pixels.

    - 0: stem, to ``[B, F/4, H/2, W/2]``
    - 1-2: reduction cells of F/2 and F channels, to ``[B, 3 F, H/8, W/8]``
    - 3 on: three groups of L/3 normal cells, of F, 2 F and 4 F channels, to ``[B, 4 F, H/8, W/8]``,
      ``[B, 8 F, H/16, W/16]`` and ``[B, 16 F, H/32, W/32]``; a reduction cell between each two
    - L + 5: average pool and linear layer

    Every cell also passes on what it was given, so that a pair goes from cell to cell.  The cells
    are those of Real et al., "Regularized Evolution for Image Classifier Architecture Search" (AAAI
    2019), as their published TensorFlow program has them: there a normal cell gives states 0, 3, 4
    and 6, in the paper's figure 4, 5 and 6, and only the former leads to GPipe's numbers of
    parameters.

    Args:
        layers: L, the normal cells of all three groups; GPipe's L is a third of this.
        filters: F, a multiple of 8.
        classes, device: number of classes; where the weights are made, "meta" for no data.

    Raises:
        ValueError: the cells do not make three groups, or the filters no whole bottlenecks.
    """
    if layers < 3 or layers % 3:
        raise ValueError(
            f"layers are three equal groups of normal cells: {layers} is not a multiple of 3"
        )
    if filters < 8 or filters % 8:
        raise ValueError(f"filters must be a multiple of 8, since cells divide them: {filters}")
    group = [_NORMAL] * (layers // 3)
    wirings = [_REDUCTION, _REDUCTION, *group, _REDUCTION, *group, _REDUCTION, *group]
    cells: list[nn.Module] = []
    with on(device):
        channels = last = before = filters // 4
        stem = nn.Sequential(
            nn.Conv2d(3, channels, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(channels)
        )
        halved = False
        for wiring in wirings:
            channels *= wiring.stride
            cells.append(_AmoebaCell(wiring, last, before, halved, channels))
            last, before = len(wiring.kept) * channels, last
            halved = wiring is _REDUCTION
        return nn.Sequential(stem, *cells, _Classifier(last, classes))


class _Wiring(NamedTuple):
    """How a cell computes: a state is the sum of two operations, each on a state before it."""

    # State 0 is what the last cell gave, state 1 what the one before gave.
    sums: tuple[tuple[tuple[str, int], tuple[str, int]], ...]  # of states 2, 3, ...: by (name, on)
    kept: tuple[int, ...]  # the states that the cell gives, beside one another
    stride: int  # of the operations on states 0 and 1


_NORMAL = _Wiring(
    sums=(
        (("1x1", 1), ("max 3x3", 1)),
        (("identity", 1), ("1x7 7x1", 0)),
        (("1x1", 0), ("1x7 7x1", 0)),
        (("max 3x3", 2), ("identity", 2)),
        (("average 3x3", 1), ("1x1", 5)),
    ),
    kept=(0, 3, 4, 6),
    stride=1,
)
_REDUCTION = _Wiring(
    sums=(
        (("max 2x2", 0), ("max 3x3", 0)),
        (("identity", 2), ("3x3", 1)),
        (("1x7 7x1", 2), ("max 3x3", 2)),
        (("identity", 3), ("max 2x2", 1)),
        (("average 3x3", 2), ("1x1", 3)),
    ),
    kept=(4, 5, 6),
    stride=2,
)


class _AmoebaCell(nn.Module):
    """Works on what the last two cells gave, of ``last`` and ``before`` channels, in ``channels``.

    ``halved``: the last cell halved the image, so that the other input is twice as large.
    """

    def __init__(
        self, wiring: _Wiring, last: int, before: int, halved: bool, channels: int
    ) -> None:
        super().__init__()
        self.enter_last = _convolution(last, channels)
        self.enter_before: nn.Module = nn.Identity()
        if halved:
            self.enter_before = _FactorizedReduce(before, channels)
        elif before != channels:
            self.enter_before = _convolution(before, channels)
        self.operations = nn.ModuleList(
            _OPERATIONS[name](channels, wiring.stride if state < 2 else 1)
            for operands in wiring.sums
            for name, state in operands
        )
        self.operands = [[state for _, state in operands] for operands in wiring.sums]
        self.kept = wiring.kept

    def forward(self, inputs: Tensor | Pair) -> Pair:
        # Before the first cell is only the stem.
        last, before = (inputs, inputs) if isinstance(inputs, Tensor) else inputs
        states = [self.enter_last(last), self.enter_before(before)]  # [B, c, H, W]
        operations = iter(self.operations)
        for one, other in self.operands:
            states.append(next(operations)(states[one]) + next(operations)(states[other]))
        return torch.cat([states[state] for state in self.kept], dim=1), last


class _FactorizedReduce(nn.Module):
    """Halves the image without losing every second pixel: one convolution sees those between."""

    def __init__(self, before: int, channels: int) -> None:
        super().__init__()
        self.even = nn.Conv2d(before, channels // 2, 1, stride=2, bias=False)
        self.odd = nn.Conv2d(before, channels // 2, 1, stride=2, bias=False)
        self.norm = nn.BatchNorm2d(channels)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(x)
        shifted = F.pad(x, (-1, 1, -1, 1))  # up and left by one pixel
        halves = torch.cat([self.even(x), self.odd(shifted)], dim=1)  # [B, c, H/2, W/2]
        reduced: Tensor = self.norm(halves)
        return reduced


def _convolution(
    before: int, after: int, size: tuple[int, int] = (1, 1), stride: tuple[int, int] = (1, 1)
) -> nn.Sequential:
    padding = size[0] // 2, size[1] // 2
    return nn.Sequential(
        nn.ReLU(),
        nn.Conv2d(before, after, size, stride, padding, bias=False),
        nn.BatchNorm2d(after),
    )


def _bottleneck(channels: int, stride: int, *sizes: tuple[int, int]) -> nn.Sequential:
    """Return convolutions of these sizes on a quarter of the channels, strided where they reach."""
    inner = channels // 4
    return nn.Sequential(
        _convolution(channels, inner),
        *(
            _convolution(inner, inner, (h, w), (stride if h > 1 else 1, stride if w > 1 else 1))
            for h, w in sizes
        ),
        _convolution(inner, channels),
    )


_OPERATIONS: dict[str, Callable[[int, int], nn.Module]] = {
    "identity": lambda *_: nn.Identity(),
    "1x1": lambda channels, stride: _convolution(channels, channels, stride=(stride, stride)),
    "3x3": lambda channels, stride: _bottleneck(channels, stride, (3, 3)),
    "1x7 7x1": lambda channels, stride: _bottleneck(channels, stride, (1, 7), (7, 1)),
    "max 2x2": lambda _, stride: nn.MaxPool2d(2, stride, ceil_mode=True),
    "max 3x3": lambda _, stride: nn.MaxPool2d(3, stride, padding=1),
    "average 3x3": lambda _, stride: nn.AvgPool2d(3, stride, padding=1, count_include_pad=False),
}
"""By name: made for so many channels and a stride."""


class _Classifier(nn.Module):
    def __init__(self, channels: int, classes: int) -> None:
        super().__init__()
        self.linear = nn.Linear(channels, classes)

    def forward(self, inputs: Pair) -> Tensor:
        logits: Tensor = self.linear(inputs[0].mean((2, 3)))  # [B, c] to [B, classes]
        return logits
