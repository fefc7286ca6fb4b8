"""What GPipe says of layers, reductions and parameters (sections 3.3, 4.3.2 and 5)."""

from itertools import pairwise

import pandas as pd
import torch
from torch import Tensor, nn

from pipekit.clusters import V100
from pipekit.models import amoebanet_d, resnet101
from pipekit.papers.costs import images
from pipekit.papers.findings import Finding
from pipekit.papers.gpipe.memory import amoebanet_b
from pipekit.papers.gpipe.memory.accelerators import amoebanet
from pipekit.papers.trainings.hooks import noted
from pipekit.profiling import Profile


def reductions() -> pd.DataFrame:
    """Return how a convolution's output and weights change with a reduction (section 3.3).

    Compared are convolutions that stand at the same place before and after a reduction: those of
    the last blocks of ResNet-101's stages, and of the last normal cells of AmoebaNet-D's groups.

    Returns:
        A row for each pair: network, activations and parameters (ratios).
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


def delayed_reduction(
    layers: int = 2, filters: int = 256, pixels: int = 224
) -> tuple[float, float]:
    """Move a stride of 2 from AmoebaNet-D's first convolution to its last (section 5).

    The first is the stem's; the last are the two that enter the last cell.

    Returns:
        Bytes that the layers between them put out, and number of parameters; both with the delayed
        reduction over without.
    """
    sizes, parameters = [], []
    for delayed in (False, True):
        model = amoebanet_d(3 * layers, filters, device="meta")
        last = len(model) - 2
        if delayed:
            model.get_submodule("0.0").stride = (1, 1)  # type: ignore[assignment]
            for entrance in ("enter_last", "enter_before"):
                model.get_submodule(f"{last}.{entrance}.1").stride = (2, 2)  # type: ignore[assignment]
        with torch.device("meta"):
            x = images(1, pixels)()
        between = Profile.analytic(model, x, V100).layers[:last]
        sizes.append(sum(layer.output_bytes for layer in between))
        parameters.append(sum(p.numel() for p in model.parameters()))
    return sizes[1] / sizes[0], parameters[1] / parameters[0]


def findings(pairs: pd.DataFrame) -> list[Finding]:
    """Return what the paper claims of them; ``pairs`` is what :func:`reductions` returned."""
    ratios = pairs[["activations", "parameters"]]
    equal = "all equal" if (ratios.nunique() == 1).all() else "not all equal"
    networks = " and ".join(pairs["network"].unique())
    scaling = f"mean of {len(pairs)} pairs of convolutions of {networks}, {equal}"
    between = (
        "bytes that the layers between both put out; the last convolutions are the two 1x1 that "
        "enter the last cell"
    )
    counted = (
        "counted from the published cells (tensorflow/tpu, amoeba_net_b), without auxiliary head; "
        "the same count of AmoebaNet-D is our model's"
    )
    giant, half = (amoebanet_b.parameters("B", 6, filters) for filters in (512, 256))
    ours = [amoebanet(6, filters).parameter_bytes for filters in (512, 256)]
    doubled = f"AmoebaNet-D (6, 256) to (6, 512); AmoebaNet-B: {giant / half:.3f}"
    delayed = list(delayed_reduction())
    return [
        Finding.exact("gpipe-layer-scaling", ratios.mean().tolist(), scaling),
        Finding.exact("gpipe-sec5-delayed-reduction-memory", delayed, between),
        Finding.exact("gpipe-sec432-params-557m", giant, counted),
        Finding.exact("gpipe-sec5-557m-doubling", ours[0] / ours[1], doubled),
    ]
