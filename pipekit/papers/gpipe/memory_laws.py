"""How activations grow: GPipe's formulas (section 3.3) and what it says of layers (2, 3.3, 5).

The formulas are about equal layers; each is counted on a network of equal layers that the engine
really trains.
"""

from collections.abc import Sequence
from itertools import pairwise, product
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from pipekit.clusters import V100
from pipekit.engine import Pipeline, measure_memory
from pipekit.models import amoebanet_d, resnet101
from pipekit.papers.findings import Finding
from pipekit.papers.gpipe import amoebanet_b
from pipekit.papers.gpipe.memory import amoebanet
from pipekit.plans import Recompute
from pipekit.profiling import Profile
from pipekit.schedules import gpipe

WIDTH = 8
"""Numbers that a layer takes and gives, for each row."""


def counted(rows: int, layers: int, stages: int, microbatches: int, recompute: Recompute) -> Tensor:
    """Train equal layers and return what every worker kept for its backwards, in bytes (measured).

    Args:
        rows: N, of the minibatch.
        layers: L.
        stages: K, equally long.
        microbatches: T.
        recompute: which microbatches are recomputed.

    Returns:
        ``[2, K]``: the most bytes at once of what first forwards kept; and with what second ones
        kept.
    """
    model = nn.Sequential(
        *(
            nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))
            for _ in range(layers)
        )
    )
    pipeline = Pipeline(
        model,
        gpipe(stages, microbatches),
        balance=[layers // stages] * stages,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.01),
        loss=lambda output, _: output.square().mean(),
        recompute=recompute,
        devices=["cpu"] * stages,
    )
    batch = torch.rand(rows, WIDTH), torch.empty(rows, 0)  # no labels, which would be counted too
    frame = measure_memory(pipeline.train([batch], memory=True)).frame
    frame = frame.assign(total=frame["activations"] + frame["recompute"])
    peaks = frame.groupby("worker")[["activations", "total"]].max()
    return torch.from_numpy(peaks.to_numpy().T)


def without_recomputation(rows: Sequence[int], layers: Sequence[int]) -> pd.DataFrame:
    """Return the bytes of activations on one worker, nothing recomputed (section 3.3: O(N L)).

    Args:
        rows: N, of the minibatch.
        layers: L.

    Returns:
        A row for every N and L: N, L, bytes.
    """
    cells = [(n, count, _fullest(n, count, 1, 1, "never")) for n, count in product(rows, layers)]
    return pd.DataFrame(cells, columns=["N", "L", "bytes"])


def exponent(frame: pd.DataFrame, of: str) -> float:
    """Return the power of N or L with which the bytes grow, fitted over all rows together.

    Args:
        frame: of :func:`without_recomputation`.
        of: "N" or "L".
    """
    logs = np.log(frame[["N", "L", "bytes"]].to_numpy(dtype=float))
    factors = np.column_stack([np.ones(len(logs)), logs[:, :2]])
    fitted = np.linalg.lstsq(factors, logs[:, 2], rcond=None)[0]
    return float(fitted[1 + ["N", "L"].index(of)])


def straightness(x: Sequence[float], y: Sequence[float]) -> float:
    """Return R^2 of the linear fit of y on x."""
    return float(np.corrcoef(x, y)[0, 1] ** 2)


def with_recomputation(
    rows: Sequence[int], layers: Sequence[int], stages: Sequence[int], microbatches: Sequence[int]
) -> pd.DataFrame:
    """Return the peak bytes of the fullest worker, and a fit of a N + b (L/K) (N/T) to them.

    Args:
        rows: N, of the minibatch.
        layers: L.
        stages: K.
        microbatches: T.

    Returns:
        A row for all their products: N, L, K, T, bytes, fitted, residual (relative).
    """
    cells = [
        (n, count, k, t, _fullest(n, count, k, t, "always"))
        for n, count, k, t in product(rows, layers, stages, microbatches)
    ]
    frame = pd.DataFrame(cells, columns=["N", "L", "K", "T", "bytes"])
    terms = np.column_stack([frame["N"], frame["L"] / frame["K"] * frame["N"] / frame["T"]])
    size = frame["bytes"].to_numpy(dtype=float)
    # Relative errors count, so that the small cases weigh as much as the large ones.
    fitted = np.linalg.lstsq(terms / size[:, None], np.ones(len(size)), rcond=None)[0]
    frame["fitted"] = terms @ fitted
    frame["residual"] = frame["fitted"] / frame["bytes"] - 1
    return frame


def boundaries_kept(rows: int, layers: int, stages: int, microbatches: int) -> list[float]:
    """Return what every worker keeps from forwards to backwards, in microbatches' inputs.

    Exactly T for each if only activations at the boundaries of partitions are kept.
    """
    first = counted(rows, layers, stages, microbatches, "always")[0]
    return (first / (rows / microbatches * WIDTH * 4)).tolist()


def reductions() -> pd.DataFrame:
    """Return how a convolution's output and weights change with a reduction (section 3.3).

    Compared are convolutions that stand at the same place before and after a reduction: those of
    the last blocks of ResNet-101's stages, and of the last normal cells of AmoebaNet-D's groups.

    Returns:
        A row for each pair: network, activations and parameters (ratios).
    """
    rows = []
    with torch.device("meta"):
        images = torch.rand(1, 3, 224, 224)
    networks = {
        "ResNet-101": (resnet101(device="meta"), (6, 10, 33, 36)),
        "AmoebaNet-D (3, 64)": (amoebanet_d(9, 64, device="meta"), (5, 9, 13)),
    }
    for name, (model, layers) in networks.items():
        for before, after in pairwise(_convolutions(model, layers, images)):
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
        if delayed:
            model.get_submodule("0.0").stride = (1, 1)  # type: ignore[assignment]
            last = len(model) - 2
            for entrance in ("enter_last", "enter_before"):
                model.get_submodule(f"{last}.{entrance}.1").stride = (2, 2)  # type: ignore[assignment]
        with torch.device("meta"):
            images = torch.rand(1, 3, pixels, pixels)
        between = Profile.analytic(model, images, V100).layers[: len(model) - 2]
        sizes.append(sum(layer.output_bytes for layer in between))
        parameters.append(sum(p.numel() for p in model.parameters()))
    return sizes[1] / sizes[0], parameters[1] / parameters[0]


def formula_findings(kept: pd.DataFrame, fit: pd.DataFrame) -> list[Finding]:
    """Return what sections 2 and 3.3 claim of activations.

    Args:
        kept: what :func:`without_recomputation` returned.
        fit: what :func:`with_recomputation` returned.
    """
    one_batch = kept[kept["N"] == kept["N"].min()]
    depths = one_batch["L"].tolist()
    inputs = boundaries_kept(rows=32, layers=16, stages=4, microbatches=8)
    return [
        Finding.exact(
            "gpipe-mem-no-opt",
            [exponent(kept, "N"), exponent(kept, "L")],
            "of the bytes counted in training; the model's input, which no layer makes, is among "
            "them",
        ),
        Finding.exact(
            "gpipe-sec2-activation-grows-with-layers",
            straightness(depths, one_batch["bytes"].tolist()),
            f"{len(one_batch)} depths from {depths[0]} to {depths[-1]}",
        ),
        Finding.exact(
            "gpipe-mem-with-opt",
            float(fit["residual"].abs().max()),
            f"{len(fit)} combinations of N, L, K and T",
        ),
        Finding.exact(
            "gpipe-only-boundary-activations",
            inputs == [8.0] * 4,
            f"microbatches' inputs kept on each of 4 stages, with 8 microbatches: {inputs}",
        ),
    ]


def layer_findings(pairs: pd.DataFrame) -> list[Finding]:
    """Return what sections 3.3, 4.3.2 and 5 claim of layers, reductions and parameters.

    Args:
        pairs: what :func:`reductions` returned.
    """
    ratios = pairs[["activations", "parameters"]]
    equal = "all equal" if (ratios.nunique() == 1).all() else "not all equal"
    giant, half = (amoebanet_b.parameters("B", 6, filters) for filters in (512, 256))
    return [
        Finding.exact(
            "gpipe-layer-scaling",
            ratios.mean().tolist(),
            f"mean of {len(pairs)} pairs of convolutions of "
            f"{' and '.join(pairs['network'].unique())}, {equal}",
        ),
        Finding.exact(
            "gpipe-sec5-delayed-reduction-memory",
            list(delayed_reduction()),
            "bytes that the layers between both put out; the last convolutions are the two 1x1 "
            "that enter the last cell",
        ),
        Finding.exact(
            "gpipe-sec432-params-557m",
            giant,
            "counted from the published cells (tensorflow/tpu, amoeba_net_b), without auxiliary "
            "head; the same count of AmoebaNet-D is our model's",
        ),
        Finding.exact(
            "gpipe-sec5-557m-doubling",
            amoebanet(6, 512).parameter_bytes / amoebanet(6, 256).parameter_bytes,
            f"AmoebaNet-D (6, 256) to (6, 512); AmoebaNet-B: {giant / half:.3f}",
        ),
    ]


def _fullest(rows: int, layers: int, stages: int, microbatches: int, recompute: Recompute) -> float:
    return float(counted(rows, layers, stages, microbatches, recompute)[1].max())


def _convolutions(
    model: nn.Sequential, layers: Sequence[int], images: Tensor
) -> list[list[tuple[int, int]]]:
    """Return, for each layer, how many numbers its convolutions put out and weights they have."""
    groups: list[list[tuple[int, int]]] = []
    for layer in layers:
        group: list[tuple[int, int]] = []

        def note(
            convolution: nn.Module, _: object, output: Tensor, group: list[Any] = group
        ) -> None:
            group.append((output.numel(), sum(p.numel() for p in convolution.parameters())))

        for module in model[layer].modules():
            if isinstance(module, nn.Conv2d):
                module.register_forward_hook(note)
        groups.append(group)
    model(images)
    return groups
