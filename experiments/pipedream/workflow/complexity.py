"""How many candidates PipeDream's planner looks at, counted (section 3.2)."""

import math
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from experiments.recorded.findings import Finding
from pipekit import plots
from pipekit.clusters import Level
from pipekit.planning.bottleneck import BottleneckProgram
from pipekit.planning.layer_ranges import LayerRanges
from pipekit.planning.objectives import Bytes, Seconds
from pipekit.profiling import Profile

SIZES = [16, 32, 64, 128]
"""Layers, and machines, for which candidates are counted."""


def iterations(layers: int, widths: Sequence[int]) -> int:
    """Return how many candidates the planner's dynamic program looks at, by a run.

    A candidate is a first stage, so many machines for it, and a place where the rest begins. The
    layers are all alike; ``widths`` are members of each level of links, innermost first.
    """
    profile = Profile.uniform(layers, 1.0, 2.0, output_bytes=1.0, parameter_bytes=1.0)
    levels = [Level(f"level {n}", width, 10.0) for n, width in enumerate(widths)]
    spans = LayerRanges(profile)
    seconds = Seconds(spans, levels, "paper", Bytes(spans, 0), math.inf)
    program = BottleneckProgram(seconds, layers, widths)
    program.plan()
    return program.candidates


def slope(x: Sequence[float], y: Sequence[float]) -> float:
    """Return the slope of a straight line through (log x, log y), by least squares."""
    return float(np.polyfit(np.log(x), np.log(y), 1)[0])


def counts() -> dict[str, list[int]]:
    """Return the candidates for each of :data:`SIZES`, by what has that size."""
    return {
        "N layers, 8 machines": [iterations(n, [8]) for n in SIZES],
        "16 layers, M machines": [iterations(16, [m]) for m in SIZES],
        "N layers, 2 levels of links": [iterations(n, [4, 2]) for n in SIZES],
    }


def counts_frame(found: Mapping[str, Sequence[int]]) -> pd.DataFrame:
    """Return :func:`counts` as rows: N or M, candidates, of."""
    return pd.concat(
        pd.DataFrame({"N or M": SIZES, "candidates": own, "of": name})
        for name, own in found.items()
    )


def counts_figure(found: Mapping[str, Sequence[int]]) -> go.Figure:
    """Draw :func:`counts` on logarithmic axes."""
    slopes = [slope(SIZES, own) for own in found.values()]
    title = "Candidates grow as N^{:.2f} and M^{:.2f}; on two levels N^{:.2f}".format(*slopes)
    axes = "N or M", "candidates", "of"
    return plots.points(counts_frame(found), *axes, title=title, label="exact", log=True)


def finding(found: Mapping[str, Sequence[int]]) -> Finding:
    """Return the largest share of N²M² that is looked at, and the slopes in N and M."""
    by_layers, by_machines, _ = found.values()
    shares = [count / (n * n * 8 * 8) for n, count in zip(SIZES, by_layers, strict=True)]
    shares += [count / (16 * 16 * m * m) for m, count in zip(SIZES, by_machines, strict=True)]
    in_layers, in_machines, two_levels = (slope(SIZES, own) for own in found.values())
    note = (
        f"with two levels of links the slope in N is {two_levels:.2f}: the O(N^3 M^2) that "
        "PipeDream-2BW's section 6 gives"
    )
    value = [max(shares), in_layers, in_machines]
    return Finding.exact("pipedream-planner-complexity", value, note, "complexity.svg")
