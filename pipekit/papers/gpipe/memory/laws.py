"""How activations grow: GPipe's formulas (section 3.3), on equal layers that are really trained."""

from collections.abc import Sequence
from functools import partial
from itertools import product

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from pipekit.engine import Pipeline, measure_memory
from pipekit.papers.findings import Finding
from pipekit.plans import Recompute
from pipekit.schedules import gpipe

WIDTH = 8
"""Numbers that a layer takes and gives, for each row."""


def counted(rows: int, layers: int, stages: int, microbatches: int, recompute: Recompute) -> Tensor:
    """Train equal layers and return what every worker kept for its backwards, in bytes (measured).

    There are N rows of a minibatch, and K equally long stages.

    Returns:
        ``[2, K]``: the most bytes at once of what first forwards kept; and with what second ones
        kept.
    """

    def layer() -> nn.Sequential:
        return nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    pipeline = Pipeline(
        nn.Sequential(*(layer() for _ in range(layers))),
        gpipe(stages, microbatches),
        balance=[layers // stages] * stages,
        optimizer=partial(torch.optim.SGD, lr=0.01),
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

    A row for every N and L: N, L, bytes.
    """
    cells = [(n, count, _fullest(n, count, 1, 1, "never")) for n, count in product(rows, layers)]
    return pd.DataFrame(cells, columns=["N", "L", "bytes"])


def exponents(frame: pd.DataFrame) -> list[float]:
    """Return the powers of N and of L with which the bytes grow, fitted over all rows together."""
    logs = np.log(frame[["N", "L", "bytes"]].to_numpy(dtype=float))
    factors = np.column_stack([np.ones(len(logs)), logs[:, :2]])
    fitted: list[float] = np.linalg.lstsq(factors, logs[:, 2], rcond=None)[0].tolist()
    return fitted[1:]


def straightness(x: Sequence[float], y: Sequence[float]) -> float:
    """Return R^2 of the linear fit of y on x."""
    return float(np.corrcoef(x, y)[0, 1] ** 2)


def with_recomputation(
    rows: Sequence[int], layers: Sequence[int], stages: Sequence[int], microbatches: Sequence[int]
) -> pd.DataFrame:
    """Return the peak bytes of the fullest worker, and a fit of a N + b (L/K) (N/T) to them.

    A row for all products of N, L, K and T: these, bytes, fitted, residual (relative).
    """
    sizes = product(rows, layers, stages, microbatches)
    cells = [(*size, _fullest(*size, "always")) for size in sizes]
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


def findings(kept: pd.DataFrame, fit: pd.DataFrame) -> list[Finding]:
    """Return what sections 2 and 3.3 claim of activations.

    ``kept`` is what :func:`without_recomputation` returned, ``fit`` what
    :func:`with_recomputation` did.
    """
    one_batch = kept[kept["N"] == kept["N"].min()]
    depths = one_batch["L"].tolist()
    straight = straightness(depths, one_batch["bytes"].tolist())
    inputs = boundaries_kept(rows=32, layers=16, stages=4, microbatches=8)
    residual = float(fit["residual"].abs().max())
    trained = (
        "of the bytes counted in training; the model's input, which no layer makes, is among them"
    )
    depth = f"{len(one_batch)} depths from {depths[0]} to {depths[-1]}"
    combinations = f"{len(fit)} combinations of N, L, K and T"
    each = f"microbatches' inputs kept on each of 4 stages, with 8 microbatches: {inputs}"
    return [
        Finding.exact("gpipe-mem-no-opt", exponents(kept), trained),
        Finding.exact("gpipe-sec2-activation-grows-with-layers", straight, depth),
        Finding.exact("gpipe-mem-with-opt", residual, combinations),
        Finding.exact("gpipe-only-boundary-activations", inputs == [8.0] * 4, each),
    ]


def _fullest(rows: int, layers: int, stages: int, microbatches: int, recompute: Recompute) -> float:
    return float(counted(rows, layers, stages, microbatches, recompute)[1].max())
