"""What data parallelism pays for communication (PipeDream, Figures 1 and 2).

A worker's overhead is the share of a step in which it does not compute.
"""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise, product
from pathlib import Path
from types import MappingProxyType

import pandas as pd
import plotly.graph_objects as go
import torch
from plotly.subplots import make_subplots

from pipekit.clusters import Cluster
from pipekit.clusters.papers import pipedream_figure1
from pipekit.clusters.traffic import all_reduce_bytes
from pipekit.emulation import emulate
from pipekit.models import PUBLISHED
from pipekit.plans import Plan
from pipekit.plots import style
from pipekit.profiling import Profile
from pipekit.schedules import pipedream
from pipekit.simulation import simulate
from pipekit.traces import Trace

ROWS: Mapping[str, int] = MappingProxyType(
    {"alexnet": 32, "vgg16": 32, "s2vt": 80, "resnet50": 32, "inception-v3": 32}
)
"""Rows a machine by model: section 5.1; it prints none for AlexNet and ResNet-50, which get what
the other image networks have."""

HEAVY, LIGHT = ("alexnet", "vgg16", "s2vt"), ("resnet50", "inception-v3")
"""What section 2.1 says of the models, on the K80."""

GPUS = ("K80", "Titan X", "V100")
"""Of Figure 1, the slowest first."""

SHARED, DUPLEX = "both directions share the link", "full duplex"
"""How a link carries the 2 (m - 1) / m |w| bytes that each of m workers sends and the same that it
receives: section 3.2 divides their sum by the bandwidth; Ethernet carries both at once."""

PRINTED = 85
"""VGG16's overhead "up to", in percent of training time (section 1)."""

_ROUNDS = 4
"""Of a simulation: the first fills, the others are all alike."""


@cache
def profiles(model: str, efficiency: float, folder: str = "") -> dict[str, Profile]:
    """Return a model's profile on each GPU of the figure.

    Args:
        model: a key of :data:`ROWS`.
        efficiency: attained part of the GPU's peak; see :meth:`Profile.analytic`.
        folder: where measured profiles lie, as ``<model>-<gpu>.json`` ("vgg16-titan-x.json"); one
            that is there replaces the reckoned one; "": nowhere.
    """
    with torch.device("meta"):
        sample = PUBLISHED[model].sample(ROWS[model])
    network = PUBLISHED[model].build(device="meta")

    def on(gpu: str) -> Profile:
        measured = Path(folder, f"{model}-{gpu.lower().replace(' ', '-')}.json")
        if folder and measured.exists():
            return Profile.load(measured)
        device = pipedream_figure1(gpu).device
        return Profile.analytic(network, sample, device, efficiency=efficiency)

    return {gpu: on(gpu) for gpu in GPUS}


def links(gpu: str, workers: int, way: str) -> Cluster:
    """Return the figure's machines, at 10 Gbps, with links that are ``SHARED`` or ``DUPLEX``."""
    cluster = pipedream_figure1(gpu, workers)
    if way == DUPLEX:
        return cluster
    (network,) = cluster.levels
    return cluster.calibrated(network.name, network.bandwidth / 2, "PipeDream section 3.2")


def step_seconds(costs: Profile, cluster: Cluster) -> float:
    """Return the simulated seconds of a steady-state step of data parallelism on all workers."""
    workers = cluster.workers
    plan = Plan.by_hand([len(costs)], rows=costs.rows, replicas=[workers])
    trace = simulate(pipedream([workers], _ROUNDS * workers), costs, plan, cluster)
    *_, before, last = update_ends(trace)
    return last - before


def update_ends(trace: Trace, worker: int = 0) -> list[float]:
    """Return when a worker's updates ended, in seconds."""
    frame = trace.frame
    return list(frame[(frame["op"] == "UPDATE") & (frame["worker"] == worker)]["end_s"])


def grid(
    models: Iterable[str],
    workers: Sequence[int],
    efficiency: float = 0.5,
    way: str = SHARED,
    folder: str = "",
) -> pd.DataFrame:
    """Simulate Figure 1.

    Args:
        models: keys of :data:`ROWS`.
        workers: counts of data-parallel workers.
        efficiency: as for :func:`profiles`.
        way: ``SHARED`` or ``DUPLEX``.
        folder: as for :func:`profiles`.

    Returns:
        A row a model, GPU and count: model, gpu, workers, compute_s, step_s, overhead (percent).
    """
    rows = []
    for model in models:
        costs = profiles(model, efficiency, folder)
        for gpu, count in product(GPUS, workers):
            compute = costs[gpu].forward_s + costs[gpu].backward_s
            step = step_seconds(costs[gpu], links(gpu, count, way))
            rows.append((model, gpu, count, compute, step, 100 * (1 - compute / step)))
    columns = ["model", "gpu", "workers", "compute_s", "step_s", "overhead"]
    return pd.DataFrame(rows, columns=columns)


@dataclass(frozen=True)
class Orderings:
    """The takeaways of section 2.1, in percentage points of overhead.

    Attributes:
        heavy_minus_light: the smallest overhead of the heavy models minus the largest of the light
            ones on the K80, at the count of workers where that is least.
        at_workers: that count.
        next_workers: the smallest step of an overhead to the next count of workers.
        next_gpu: the smallest step of an overhead to the next faster GPU.
    """

    heavy_minus_light: float
    at_workers: int
    next_workers: float
    next_gpu: float

    @property
    def hold(self) -> bool:
        """Whether all do, in every cell."""
        return min(self.heavy_minus_light, self.next_workers, self.next_gpu) > 0


def orderings(frame: pd.DataFrame) -> Orderings:
    """Return what a grid says about the takeaways; see :func:`grid`."""
    k80 = frame[frame["gpu"] == "K80"].pivot(index="workers", columns="model", values="overhead")
    lead = k80[list(HEAVY)].min(axis=1) - k80[list(LIGHT)].max(axis=1)
    by_workers = frame.pivot(index=["model", "gpu"], columns="workers", values="overhead")
    by_gpu = frame.pivot(index=["model", "workers"], columns="gpu", values="overhead")[list(GPUS)]
    return Orderings(
        heavy_minus_light=float(lead.min()),
        at_workers=int(lead.idxmin()),
        next_workers=_least_step(by_workers),
        next_gpu=_least_step(by_gpu),
    )


def figure(frame: pd.DataFrame, title: str, label: str) -> go.Figure:
    """Draw a grid as the paper does: a panel a GPU, a line a model, overhead over workers.

    The fastest GPU's panel also has the paper's one number, VGG16's largest (section 1).

    Args:
        frame: of :func:`grid`.
        title: what is shown, without the label.
        label: what the numbers are.
    """
    drawn = make_subplots(cols=len(GPUS), shared_yaxes=True, horizontal_spacing=0.04)
    drawn.update_layout(style.layout(300, f"{title} ({label})"))
    drawn.update_layout(margin={**style.MARGIN_PX, "t": 64, "b": 96}, height=300 + 64 + 96)
    drawn.layout.title.pad.b = 30
    counts = sorted(frame["workers"].unique())
    drawn.add_scatter(
        x=[counts[0], counts[-1]],
        y=[PRINTED] * 2,
        name=f"vgg16, up to (paper): {PRINTED} %",
        mode="lines",
        line={"color": style.SERIES_COLORS[1], "dash": "dot", "width": 1},
        row=1,
        col=len(GPUS),
    )
    for column, gpu in enumerate(GPUS, start=1):
        lines = frame[frame["gpu"] == gpu].groupby("model", sort=False)
        for place, (model, rows) in enumerate(lines):
            drawn.add_scatter(
                x=rows["workers"].to_numpy(),
                y=rows["overhead"].to_numpy(),
                name=str(model),
                mode="lines",
                line=style.line(place),
                showlegend=column == 1,
                legendgroup=str(model),
                row=1,
                col=column,
            )
        ticks = {"type": "log", "tickvals": counts, "ticktext": [str(count) for count in counts]}
        drawn.update_xaxes(style.axis("data-parallel workers", **ticks), col=column)
        drawn.update_yaxes(
            style.axis("overhead (% of a step)" if column == 1 else None, range=[0, 100]),
            showticklabels=column == 1,
            col=column,
        )
        (left, right) = drawn.layout[f"xaxis{column if column > 1 else ''}"].domain
        drawn.add_annotation(
            text=gpu,
            showarrow=False,
            **{"x": (left + right) / 2, "xref": "paper", "xanchor": "center"},
            **{"y": 1, "yref": "paper", "yanchor": "bottom", "yshift": 4},
        )
    return drawn


@dataclass(frozen=True)
class Timeline:
    """Figure 2: a timeline of data parallelism, really run with modelled compute and links.

    Attributes:
        trace: of the run, emulated.
        order: worker 0's forwards, backwards and updates in order, say "FBUFBU".
        stall_s: median seconds from the end of a backward to the update, which waits for the
            gradients of all.
        expected_s: the same by :func:`exposed_seconds`.
        exchange_s: seconds that an exchange takes in all.
    """

    trace: Trace
    order: str
    stall_s: float
    expected_s: float
    exchange_s: float

    def holds(self, tolerance: float) -> bool:
        """Return whether the workers stall between B_n and F_n+1 for what is not overlapped.

        Args:
            tolerance: how far the stall may be from the expected one, as a part of it.
        """
        return (
            self.order == "FBU" * (len(self.order) // 3)
            and math.isclose(self.stall_s, self.expected_s, rel_tol=tolerance)
            and 0 < self.stall_s < self.exchange_s
        )


def timeline(costs: Profile, cluster: Cluster, rounds: int) -> Timeline:
    """Emulate so many steps of data parallelism on all workers of a cluster."""
    workers = cluster.workers
    plan = Plan.by_hand([len(costs)], rows=costs.rows, replicas=[workers])
    trace = emulate(pipedream([workers], rounds * workers), costs, plan, cluster).trace
    own = trace.frame[trace.frame["worker"] == 0]
    backwards = own[own["op"] == "BACKWARD"]["end_s"]
    stalls = [end - before for before, end in zip(backwards, update_ends(trace), strict=True)]
    bandwidth = cluster.levels[-1].used_bandwidth
    return Timeline(
        trace=trace,
        order="".join(op[0] for op in own["op"]),
        stall_s=statistics.median(stalls),
        expected_s=exposed_seconds(costs, workers, bandwidth),
        exchange_s=all_reduce_bytes(costs.parameter_bytes, workers) / bandwidth,
    )


def exposed_seconds(costs: Profile, workers: int, bandwidth: float) -> float:
    """Return the part of the wait-free exchange that is left when the backward has ended.

    Layers' gradients take turns on the link, in the order of the backward (section 2.1).

    Args:
        costs: of the layers.
        workers: that exchange.
        bandwidth: bytes/s of a worker's link, in each direction.
    """
    computed = sent = 0.0
    for layer in reversed(costs.layers):
        computed += layer.backward_s
        if layer.parameter_bytes:
            size = all_reduce_bytes(layer.parameter_bytes, workers)
            sent = max(sent, computed) + size / bandwidth
    return max(0.0, sent - computed)


def _least_step(table: pd.DataFrame) -> float:
    columns = list(table)
    return float(min((table[b] - table[a]).min() for a, b in pairwise(columns)))
