"""What GPipe says of reductions: what they do to layers (3.3), and one that comes late (5)."""

from itertools import pairwise

import pandas as pd
import torch
from torch import Tensor, nn

from experiments.study.costs import images
from experiments.study.differences import noted
from pipekit.clusters import V100
from pipekit.models import amoebanet_d, resnet101
from pipekit.profiling import Profile


def reductions() -> pd.DataFrame:
    """Return how a convolution's output and weights change with a reduction (section 3.3).

    Compared are convolutions that stand at the same place before and after a reduction: those of
    the last blocks of ResNet-101's stages, and of the last normal cells of AmoebaNet-D's groups.
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
    """Return the bytes that AmoebaNet-D (2, 256) puts out before its last cell, and its parameters.

    ``delayed`` moves a stride of 2 from its first convolution, the stem's, to its last, the two
    that enter the last cell (section 5).
    """
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
