"""How many parameters AmoebaNet-B (L, F) has, which GPipe scaled up to 557 million (section 4.3.2).

The network is not among our models; its parameters follow from its cells as Real et al.'s
TensorFlow program has them (github.com/tensorflow/tpu, models/official/amoeba_net,
"amoeba_net_b").  Counted likewise, "amoeba_net_d" has exactly as many as our model of it.  An
auxiliary head, with which 557 million may be printed, is not counted.
"""

from typing import NamedTuple


class Cell(NamedTuple):
    """The operations of a cell that have parameters, and how many states it gives."""

    operations: tuple[str, ...]
    kept: int


NORMAL = {
    "B": Cell(("1x1", "separable 3x3", "1x1", "separable 3x3", "1x1", "1x1"), kept=4),
    "D": Cell(("1x1", "1x7 7x1", "1x1", "1x7 7x1", "1x1"), kept=4),
}
REDUCTION = {
    "B": Cell(("3x3", "separable 5x5", "separable 3x3", "1x1"), kept=2),
    "D": Cell(("3x3", "1x7 7x1", "1x1"), kept=3),
}


def parameters(kind: str, layers: int, filters: int, classes: int = 1000) -> int:
    """Return the number of trained parameters of AmoebaNet-B or -D, the ``kind``."""
    group = [NORMAL[kind]] * layers
    reduction = REDUCTION[kind]
    channels = last = before = filters // 4
    total = _convolution(3, channels, 9)
    halved = False
    for cell in [reduction, reduction, *group, reduction, *group, reduction, *group]:
        if cell is reduction:
            channels *= 2
        total += _convolution(last, channels)
        if halved or before != channels:
            total += _convolution(before, channels)
        total += sum(_operation(name, channels) for name in cell.operations)
        last, before = cell.kept * channels, last
        halved = cell is reduction
    return total + last * classes + classes


def _operation(name: str, channels: int) -> int:
    if name == "1x1":
        return _convolution(channels, channels)
    if name.startswith("separable"):  # twice: every channel by itself, then all together
        side = int(name[-1])
        return 2 * (channels * side**2 + _convolution(channels, channels))
    inner = channels // 4  # a bottleneck
    kernels = [9] if name == "3x3" else [7, 7]
    ends = _convolution(channels, inner) + _convolution(inner, channels)
    return ends + sum(_convolution(inner, inner, kernel) for kernel in kernels)


def _convolution(before: int, after: int, kernel: int = 1) -> int:
    """Return a convolution's weights, and scale and shift of the batch norm behind it."""
    return kernel * before * after + 2 * after
