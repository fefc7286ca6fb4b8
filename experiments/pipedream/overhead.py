"""What data parallelism pays for communication: simulated (Figures 1 and 2) and measured (2.1).

Measured on two workers, each in a network namespace, that train one model: with PyTorch's
DistributedDataParallel (DDP), which sends a bucket of gradients as soon as the backward has
computed it (wait-free backpropagation), and with pipekit's engine, as a single stage (section 4).
"""

import time
from collections.abc import Callable, Sequence
from functools import cache, partial

import numpy as np
import pandas as pd
import plotly.express as px
import plotly.graph_objects as go
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from experiments import study
from experiments.benchmarks.harness import plain_step, transfer_seconds
from experiments.pipedream import ROWS
from experiments.pipedream.table1.plans import data_parallel
from experiments.study.costs import as_published, faster_links
from pipekit.clusters import Cluster, namespaces
from pipekit.clusters.papers import pipedream_figure1
from pipekit.clusters.traffic import all_reduce_bytes
from pipekit.engine import Pipeline
from pipekit.host.operator_threads import share_cores
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
    return faster_links(cluster, 0.5) if way == SHARED else cluster


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


def figure1(grid: pd.DataFrame, title: str, printed: float) -> go.Figure:
    """Draw Figure 1 as the paper does: a panel a GPU, a line a model."""
    look = {"color": "model", "color_discrete_sequence": style.SERIES_COLORS}
    look |= {"line_dash": "model", "line_dash_sequence": style.SERIES_DASHES}
    drawn = px.line(grid, "workers", "overhead", **look, facet_col="gpu", facet_col_spacing=0.04)
    drawn.for_each_annotation(lambda panel: panel.update(text=panel.text.removeprefix("gpu=")))
    drawn.update_layout(style.layout(300, f"{title} (simulated)"), height=460, margin_b=96)
    drawn.layout.margin.t += 22  # for the titles of the panels
    drawn.layout.title.pad.b += 22
    counts: Sequence[int] = sorted(grid["workers"].unique())
    line = [counts[0], counts[-1]], [printed] * 2, f"vgg16, up to (paper): {printed:g} %"
    study.with_line(drawn, *line, "dot", row=1, col=len(GPUS))
    ticks = {"tickvals": counts, "ticktext": [str(count) for count in counts]}
    drawn.update_xaxes(style.axis("data-parallel workers", type="log", **ticks))
    drawn.update_yaxes(style.axis(range=[0, 100]))
    return drawn.update_yaxes(style.axis("overhead (% of a step)"), col=1)


WORKERS = 2
LR = 0.01
TRANSFERRED_BYTES, TRANSFERS = 25_690_112, 5  # what pool3 of VGG16 puts out, for 32 images

COMPUTE = "compute alone"
WAIT_FREE = "DDP, wait-free"
ENGINE = "pipekit, one stage on 2 workers"
TRANSFER = "a transfer"


def measure(link: str | None, rows: int, steps: int, repeats: int) -> pd.DataFrame:
    """Train on two workers behind links of a rate, "300mbit" as ``tc`` writes it, or None.

    Returns the seconds from one update to the next, by ``way`` and ``turn``, and those of each
    transfer of ``TRANSFERRED_BYTES``. Without network namespaces it is an OSError.
    """
    taken = namespaces.call(train, WORKERS, link, rows, steps, repeats)
    frame = pd.DataFrame(taken, columns=["way", "turn", "seconds"])
    return frame.explode("seconds", ignore_index=True).astype({"seconds": float})


def network() -> nn.Sequential:
    """Return a small AlexNet for images [B, 1, 28, 28]: 26 MB of weights, 99 % in linear layers."""
    return nn.Sequential(
        nn.Conv2d(1, 32, 5, padding=2),  # [B, 32, 28, 28]
        nn.ReLU(),
        nn.MaxPool2d(2),  # [B, 32, 14, 14]
        nn.Conv2d(32, 64, 5, padding=2),  # [B, 64, 14, 14]
        nn.ReLU(),
        nn.MaxPool2d(2),  # [B, 64, 7, 7]
        nn.Flatten(),  # [B, 3136]
        nn.Linear(3136, 2048),
        nn.ReLU(),
        nn.Linear(2048, 10),
    )


def timed(step: Callable[[], None], steps: int) -> list[float]:
    """Return the seconds from one update to the next."""
    updates = []
    for _ in range(1 + steps):
        step()
        updates.append(time.perf_counter())
    return list(np.diff(updates))


def train(rows: int, steps: int, repeats: int) -> list[tuple[str, int, list[float]]]:
    """Train as one of the workers; return each way's seconds, by turn."""
    share_cores(WORKERS)
    torch.manual_seed(0)
    own = torch.rand(rows, 1, 28, 28), torch.randint(10, (rows,))
    sgd, loss = partial(torch.optim.SGD, lr=LR), nn.CrossEntropyLoss()
    pipeline = Pipeline(
        network(), pipedream([WORKERS]), optimizer=sgd, loss=loss, transport="distributed"
    )
    models = {COMPUTE: network(), WAIT_FREE: DistributedDataParallel(network())}
    ways = {way: plain_step(model, own, loss, 1, sgd) for way, model in models.items()}
    for step in ways.values():
        timed(step, 1)  # DDP arranges its buckets after its first step
    taken = []
    for turn in range(repeats):
        for way, step in ways.items():
            dist.barrier()
            taken.append((way, turn, timed(step, steps)))
        updates = pipeline.train([own] * (1 + steps) * WORKERS).trace.ends("UPDATE", worker=0)
        taken.append((ENGINE, turn, np.diff(updates).tolist()))
    return [*taken, (TRANSFER, 0, [transfer_seconds(TRANSFERRED_BYTES) for _ in range(TRANSFERS)])]
