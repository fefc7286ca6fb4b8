"""U-Nets really trained, all tensors counted, beside the memory model (torchgpipe, 4.2.2)."""

from collections.abc import Sequence

import pandas as pd
import plotly.graph_objects as go
import torch
from torch import nn

from experiments.torchgpipe.memory.unets import by_size, peak_bytes
from experiments.torchgpipe.settings import plain_sgd
from experiments.torchgpipe.trained import pipeline
from pipekit import models, plots
from pipekit.clusters import P40
from pipekit.engine import measure_memory
from pipekit.plans import Plan, Recompute
from pipekit.profiling import Profile

TRIED: Sequence[tuple[int, int, Recompute]] = (
    (1, 1, "never"),
    (1, 4, "except_last"),
    (2, 4, "never"),
    (2, 4, "except_last"),
    (4, 8, "except_last"),
)
"""(stages, microbatches, recomputed) of the small U-Nets that are trained."""

LOSS = nn.BCEWithLogitsLoss()


def beside_simulated(
    size: Sequence[int], rows: int, pixels: int, tried: Sequence[tuple[int, int, Recompute]]
) -> pd.DataFrame:
    """Really train a U-Net (B, C) on a batch of square images in some ways, and simulate that.

    It is cut by :func:`by_size`.

    Returns:
        A row a worker: what ("n = 2"), measured and simulated, in bytes and MB.
    """
    network = models.unet(*size)
    batch = torch.rand(rows, 3, pixels, pixels), torch.rand(rows, 1, pixels, pixels)
    found = []
    for stages, m, recompute in tried:
        profile = Profile.analytic(network, batch[0][: rows // m], P40)
        plan = Plan.by_hand(by_size(profile, stages), rows=rows // m, recompute=recompute)
        trained = pipeline(network, stages, m, balance=plan, optimizer=plain_sgd, loss=LOSS)
        measured = measure_memory(trained.train([batch], memory=True)).peak_bytes
        simulated = peak_bytes(profile, plan, m)
        found += [(f"n = {stages}", *peaks) for peaks in zip(measured, simulated, strict=True)]
    frame = pd.DataFrame(found, columns=["what", "measured", "simulated"])
    mega = {f"{name} (MB)": frame[name] / 1e6 for name in ("measured", "simulated")}
    return frame.assign(**mega)


def largest_error(found: pd.DataFrame) -> float:
    """Return how far simulated peaks are from measured ones at most, relatively."""
    return float((found["simulated"] / found["measured"] - 1).abs().max())


def figure(found: pd.DataFrame) -> go.Figure:
    """Draw measured peaks over simulated ones, a point a worker."""
    title = f"Peak bytes of real U-Nets are predicted within {largest_error(found):.1%}"
    x, y, label = "simulated (MB)", "measured (MB)", "measured, simulated"
    return plots.points(found, x, y, "what", title=title, label=label, diagonal=True)
