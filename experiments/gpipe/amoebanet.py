"""AmoebaNets of any size (L, F): the bytes of D from three small ones, the parameters of B.

A search looks at hundreds of networks, whose profiles take seconds each.  But every number of bytes
in AmoebaNet-D is a polynomial of F of degree 2 at most, as a weight has F^2 numbers, F or none; and
from the third on, a group's normal cells are equal.
"""

from dataclasses import replace
from functools import cache, partial
from itertools import pairwise

import pandas as pd
import torch
from torch import Tensor, nn

from experiments.study.costs import estimated, images
from experiments.study.training import noted
from pipekit.clusters import V100
from pipekit.models import amoebanet_d, resnet101
from pipekit.profiling import LayerProfile, Profile

DISTINCT = 3  # normal cells of a group that may differ from those before them

NUMBERS = ("output_bytes", "parameter_bytes", "saved_bytes", "buffer_bytes", "flops")

STEM = 3  # layers before the first normal cell: a convolution and two reduction cells


def profile(layers: int, filters: int, rows: int, pixels: int, classes: int = 1000) -> Profile:
    """Return the bytes of AmoebaNet-D (L, F) in float32; a forward takes 1 s, a backward 2 s."""
    distinct = min(layers, DISTINCT)
    known = [_profiled(distinct, f, rows, pixels, classes) for f in (8, 16, 24)]
    mixed = [_at(filters, same) for same in zip(*(one.layers for one in known), strict=True)]
    period = distinct + 1  # a group, and the reduction cell or classifier behind it
    chain = mixed[:STEM]
    for first in range(STEM, len(mixed), period):
        *cells, behind = mixed[first : first + period]
        chain += [*cells, *[cells[-1]] * (layers - len(cells)), behind]
    return replace(known[0], layers=tuple(chain))


@cache
def _profiled(layers: int, filters: int, rows: int, pixels: int, classes: int) -> Profile:
    build = partial(amoebanet_d, 3 * layers, filters, classes)
    return estimated(build, images(rows, pixels), V100)


def _at(filters: int, same: tuple[LayerProfile, ...]) -> LayerProfile:
    """Return a layer with F filters, from the same layer with 8, 16 and 24."""
    f = filters / 8
    lagrange = (f - 2) * (f - 3) / 2, (f - 1) * (3 - f), (f - 1) * (f - 2) / 2
    sums = {
        name: float(round(sum(w * getattr(x, name) for w, x in zip(lagrange, same, strict=True))))
        for name in NUMBERS
    }
    name, saves = same[0].name, same[0].saves_output
    return LayerProfile(name, forward_s=1, backward_s=2, saves_output=saves, **sums)


NORMAL = "1x1", "separable 3x3", "1x1", "separable 3x3", "1x1", "1x1"
REDUCTION = "3x3", "separable 5x5", "separable 3x3", "1x1"
"""AmoebaNet-B's operations with parameters; a normal cell gives 4 states, a reduction cell 2."""


def parameters_b(layers: int, filters: int) -> int:
    """Return the number of trained parameters of AmoebaNet-B (L, F) (section 4.3.2).

    By its cells as Real et al.'s TensorFlow program has them (github.com/tensorflow/tpu,
    models/official/amoeba_net, "amoeba_net_b"), without an auxiliary head.
    """
    channels = last = before = filters // 4
    total = _convolution(3, channels, 9)
    halved, groups = False, [False, False, *[*[True] * layers, False] * 3]
    for normal in groups[:-1]:
        channels *= 1 if normal else 2
        total += _convolution(last, channels)
        if halved or before != channels:
            total += _convolution(before, channels)
        total += sum(_operation(name, channels) for name in (NORMAL if normal else REDUCTION))
        last, before = (4 if normal else 2) * channels, last
        halved = not normal
    return total + 1000 * last + 1000  # of classes


def _operation(name: str, channels: int) -> int:
    if name == "1x1":
        return _convolution(channels, channels)
    if name.startswith("separable"):  # twice: every channel by itself, then all together
        return 2 * (channels * int(name[-1]) ** 2 + _convolution(channels, channels))
    inner = channels // 4  # a bottleneck
    ends = _convolution(channels, inner) + _convolution(inner, channels)
    return ends + _convolution(inner, inner, 9)


def _convolution(before: int, after: int, kernel: int = 1) -> int:
    """Return a convolution's weights, and scale and shift of the batch norm behind it."""
    return kernel * before * after + 2 * after


def reductions() -> pd.DataFrame:
    """Return how convolutions' outputs and weights change with a reduction (section 3.3).

    Of the last blocks of ResNet-101's stages and the last normal cells of AmoebaNet-D's groups.
    """

    def sizes(layer: nn.Module, _: Tensor, output: Tensor) -> tuple[int, int]:
        return output.numel(), sum(p.numel() for p in layer.parameters())

    networks = {
        "ResNet-101": (resnet101(device="meta"), (6, 10, 33, 36)),
        "AmoebaNet-D (3, 64)": (amoebanet_d(9, 64, device="meta"), (5, 9, 13)),
    }
    rows = []
    for name, (model, layers) in networks.items():
        blocks = [
            noted((each for each in model[layer].modules() if isinstance(each, nn.Conv2d)), sizes)
            for layer in layers
        ]
        with torch.device("meta"):
            model(images(1, 224)())
        for before, after in pairwise(blocks):
            for (y, w), (y_after, w_after) in zip(before, after, strict=True):
                rows.append((name, y_after / y, w_after / w))
    return pd.DataFrame(rows, columns=["network", "activations", "parameters"])


def stem_to_last_cell(*, delayed: bool) -> tuple[float, int]:
    """Return the bytes that AmoebaNet-D (2, 256) puts out before its last cell; its parameters."""
    model = amoebanet_d(3 * 2, 256, device="meta")
    last = len(model) - 2
    if delayed:
        model.get_submodule("0.0").stride = (1, 1)  # type: ignore[assignment]
        for entrance in ("enter_last", "enter_before"):
            model.get_submodule(f"{last}.{entrance}.1").stride = (2, 2)  # type: ignore[assignment]
    with torch.device("meta"):
        x = images(1, 224)()
    between = Profile.analytic(model, x, V100).layers[:last]
    parameters = sum(p.numel() for p in model.parameters())
    return sum(layer.output_bytes for layer in between), parameters
