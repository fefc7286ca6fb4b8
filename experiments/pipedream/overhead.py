"""What data parallelism pays for communication, in steps' shares (PipeDream, Figures 1 and 2)."""

from collections.abc import Sequence
from functools import cache

import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from experiments import study
from experiments.pipedream import ROWS
from experiments.pipedream.table1.plans import data_parallel
from experiments.study.costs import as_published
from pipekit import plots
from pipekit.clusters import Cluster
from pipekit.clusters.papers import pipedream_figure1
from pipekit.clusters.traffic import all_reduce_bytes
from pipekit.plots import style
from pipekit.profiling import Profile
from pipekit.schedules import pipedream
from pipekit.simulation import simulate

GPUS = ("K80", "Titan X", "V100")  # of Figure 1, the slowest first

SHARED, DUPLEX = "both directions share the link", "full duplex"
"""How a link carries the 2 (m - 1) / m |w| bytes that each of m workers sends and as many that it
receives: section 3.2 divides their sum by the bandwidth; Ethernet and all links of
:mod:`pipekit.clusters` carry both at once.  The claims are judged on ``DUPLEX``."""

_ROUNDS = 4  # of a simulation: the first fills, the others are all alike


@cache
def profile_of(model: str, gpu: str, efficiency: float, others_seconds: bool = False) -> Profile:
    """Return a model's profile on a GPU of the figure, estimated at a share of the GPU's peak."""
    device = pipedream_figure1(gpu).device
    estimated = study.published(model, ROWS[model], device, efficiency=efficiency)
    return as_published(estimated, model, device) if others_seconds else estimated


def links(gpu: str, workers: int, way: str) -> Cluster:
    """Return the figure's machines, at 10 Gbps, with links that are ``SHARED`` or ``DUPLEX``."""
    cluster = pipedream_figure1(gpu, workers)
    if way != SHARED:
        return cluster
    (network,) = cluster.levels
    return cluster.calibrated(network.name, network.bandwidth / 2, "PipeDream section 3.2")


def step(costs: Profile, cluster: Cluster) -> dict[str, float]:
    """Simulate a steady-state step of data parallelism on all workers of a cluster."""
    workers = cluster.workers
    table = pipedream([workers]).take(_ROUNDS * workers)
    trace = simulate(table, costs, data_parallel(costs, workers), cluster)
    step_s = study.mean_interval(trace.ends("UPDATE", worker=0), -2, -1)
    compute_s = costs.forward_s + costs.backward_s
    return {
        "compute_s": compute_s,
        "exchange_s": all_reduce_bytes(costs.parameter_bytes, workers) / cluster.bandwidth(0, 1),
        "step_s": step_s,
        "overhead": 100 * (1 - compute_s / step_s),
    }


def exposed_seconds(costs: Profile, workers: int, bandwidth: float) -> float:
    """Return the part of the wait-free exchange that is left when the backward is over."""
    computed = sent = 0.0
    for layer in reversed(costs.layers):
        computed += layer.backward_s
        if layer.parameter_bytes:
            size = all_reduce_bytes(layer.parameter_bytes, workers)
            sent = max(sent, computed) + size / bandwidth
    return max(0.0, sent - computed)


def figure1(grid: pd.DataFrame, title: str, printed: float) -> go.Figure:
    """Draw Figure 1 as the paper does: a panel a GPU, a line a model."""
    space = {"shared_yaxes": True, "horizontal_spacing": 0.04}
    drawn = make_subplots(cols=len(GPUS), subplot_titles=GPUS, **space)
    drawn.update_layout(style.layout(300, f"{title} (simulated)"), height=460, margin_b=96)
    drawn.layout.margin.t += 22  # for the titles of the panels
    drawn.layout.title.pad.b += 22
    counts: Sequence[int] = sorted(grid["workers"].unique())
    line = [counts[0], counts[-1]], [printed] * 2, f"vgg16, up to (paper): {printed:g} %"
    study.with_line(drawn, *line, "dot", row=1, col=len(GPUS))
    for column, gpu in enumerate(GPUS, start=1):
        own, axes = grid[grid["gpu"] == gpu], ("workers", "overhead", "model")
        for trace in plots.curves(own, *axes, title=gpu, label="simulated").data:
            trace.update(showlegend=column == 1, legendgroup=trace.name)
            drawn.add_trace(trace, row=1, col=column)
    ticks = {"tickvals": counts, "ticktext": [str(count) for count in counts]}
    drawn.update_xaxes(style.axis("data-parallel workers", type="log", **ticks))
    drawn.update_yaxes(style.axis(range=[0, 100]))
    return drawn.update_yaxes(style.axis("overhead (% of a step)"), col=1)
