"""What data parallelism pays for communication (PipeDream, Figure 1).

A worker's overhead is the share of a step in which it does not compute.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from experiments.pipedream.settings import ROWS
from experiments.pipedream.table1.speeds import data_parallel
from experiments.recorded.findings import Finding
from experiments.study.costs import published
from experiments.study.figures import with_line
from experiments.study.traces import mean_interval
from pipekit import plots
from pipekit.clusters import Cluster
from pipekit.clusters.papers import pipedream_figure1
from pipekit.clusters.paths import all_reduce_bytes
from pipekit.plots import style
from pipekit.profiling import Profile
from pipekit.schedules import pipedream
from pipekit.simulation import simulate

HEAVY, LIGHT = ("alexnet", "vgg16", "s2vt"), ("resnet50", "inception-v3")
"""What section 2.1 says of the models, on the K80."""

GPUS = ("K80", "Titan X", "V100")
"""Of Figure 1, the slowest first."""

SHARED, DUPLEX = "both directions share the link", "full duplex"
"""How a link carries the 2 (m - 1) / m |w| bytes that each of m workers sends and the same that it
receives: section 3.2 divides their sum by the bandwidth; Ethernet carries both at once, and so do
all links of :mod:`pipekit.clusters`, Table 1's among them.  The claims are judged on ``DUPLEX``."""

PRINTED = 85
"""VGG16's overhead "up to", in percent of training time (section 1)."""

OVERLAP, ONE_AFTER_THE_OTHER = "gradients leave during the backward", "they leave after it"
"""What may make the figure's orders miss, and what is done instead."""

_ROUNDS = 4
"""Of a simulation: the first fills, the others are all alike."""


@cache
def profiles(model: str, efficiency: float, folder: str = "") -> dict[str, Profile]:
    """Return a model's profile on each GPU of the figure, at a share of the GPU's peak.

    A measured profile in ``folder``, "vgg16-titan-x.json", replaces the estimated one.
    """

    def on(gpu: str) -> Profile:
        measured = Path(folder, f"{model}-{gpu.lower().replace(' ', '-')}.json")
        if folder and measured.exists():
            return Profile.load(measured)
        device = pipedream_figure1(gpu).device
        return published(model, ROWS[model], device, efficiency=efficiency)

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
    table = pipedream([workers]).take(_ROUNDS * workers)
    trace = simulate(table, costs, data_parallel(costs, workers), cluster)
    return mean_interval(trace.ends("UPDATE", worker=0), -2, -1)


def grid(
    models: Iterable[str],
    workers: Sequence[int],
    efficiency: float = 0.5,
    way: str = DUPLEX,
    folder: str = "",
) -> pd.DataFrame:
    """Simulate Figure 1: model, gpu, workers, compute_s, exchange_s (of all gradients, alone on the
    links), step_s and overhead (percent), a row each.

    Arguments as for :func:`profiles`; links are ``SHARED`` or ``DUPLEX``.
    """
    rows = [
        (
            model,
            gpu,
            m,
            costs.forward_s + costs.backward_s,
            all_reduce_bytes(costs.parameter_bytes, m) / links(gpu, m, way).bandwidth(0, 1),
            step_seconds(costs, links(gpu, m, way)),
        )
        for model in models
        for gpu, costs in profiles(model, efficiency, folder).items()
        for m in workers
    ]
    table = pd.DataFrame(
        rows, columns=["model", "gpu", "workers", "compute_s", "exchange_s", "step_s"]
    )
    return table.assign(overhead=100 * (1 - table["compute_s"] / table["step_s"]))


@dataclass(frozen=True)
class Orderings:
    """The takeaways of section 2.1, in percentage points of overhead.

    ``heavy_minus_light`` is the smallest overhead of the heavy models minus the largest of the
    light ones on the K80, at the count of workers ``at_workers`` where that is least; the others
    are the smallest steps of an overhead to the next count of workers and the next faster GPU.
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
    steps = (float(table.diff(axis=1).min().min()) for table in (by_workers, by_gpu))
    return Orderings(float(lead.min()), int(lead.idxmin()), *steps)


def grids(workers: Sequence[int], efficiency: float, folder: str) -> dict[str, pd.DataFrame]:
    """Return :func:`grid` of all models for each way that a link may carry both directions."""
    return {way: grid(ROWS, workers, efficiency, way, folder) for way in (SHARED, DUPLEX)}


def largest_of_vgg16(frame: pd.DataFrame) -> float:
    """Return VGG16's largest overhead in a :func:`grid`, in percent."""
    return float(frame[frame["model"] == "vgg16"]["overhead"].max())


def readings(grids: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """Return the takeaways of section 2.1 for each way that a link may carry both directions."""
    found = {way: (largest_of_vgg16(frame), orderings(frame)) for way, frame in grids.items()}
    return pd.DataFrame(
        {
            "links (simulated)": way,
            "VGG16's largest (%)": largest,
            "heavy - light on the K80, least (pp)": each.heavy_minus_light,
            "at workers": each.at_workers,
            "next count of workers, least (pp)": each.next_workers,
            "next GPU, least (pp)": each.next_gpu,
            "all three hold": each.hold,
        }
        for way, (largest, each) in found.items()
    )


def sensitivity(efficiency: float, workers: int) -> pd.DataFrame:
    """Return VGG16's largest overhead (%) by the attained share of a GPU's peak FLOP/s."""
    return pd.DataFrame(
        {
            "share of the peak": share,
            **{
                f"{way} (%)": grid(["vgg16"], [workers], share, way)["overhead"].max()
                for way in (SHARED, DUPLEX)
            },
        }
        for share in [0.3, efficiency, 0.7, 0.85, 1.0]
    )


def findings(
    grids: Mapping[str, pd.DataFrame], sensitivity: pd.DataFrame, efficiency: float
) -> list[Finding]:
    """Return the takeaways of section 2.1, judged on full-duplex links, as Table 1's are."""
    frame, found = grids[DUPLEX], orderings(grids[DUPLEX])
    k80 = frame[frame["gpu"] == "K80"].set_index(["model", "workers"])["overhead"]
    least, at = found.heavy_minus_light, found.at_workers
    note = (
        f"least at {at} workers, where VGG16 has {k80['vgg16', at]:.2g} % and ResNet-50 "
        f"{k80['resnet50', at]:.2g} %"
    )
    if least <= 0:
        note += (
            " The simulated exchange overlaps perfectly: while a K80 goes backward through "
            "VGG16's convolutions, which have few parameters, those of its linear layers are long "
            "on their way."
        )
    hidden = "least where the exchange is hidden but for the first layer's gradients"
    reading = (
        f"full duplex at 10 Gbps, compute at {efficiency:.0%} of the peak. If both directions "
        f"shared the link, as section 3.2's volume has it, {largest_of_vgg16(grids[SHARED]):.1f}; "
        f"at {sensitivity['share of the peak'].iloc[-1]:.0%} of the peak "
        f"{sensitivity[f'{DUPLEX} (%)'].iloc[-1]:.1f}: the overhead hangs on what a GPU attains"
    )
    least_apart, apart_hold = _apart(frame)
    values = {
        "pipedream-fig1-takeaway-heavy-models": (least, note),
        "pipedream-fig1-takeaway-light-models": (least, note),
        "pipedream-fig1-takeaway-workers": (found.next_workers, hidden),
        "pipedream-fig1-takeaway-gpu-speed": (found.next_gpu, hidden),
        "pipedream-fig1-overhead-grid": (found.hold, note),
        "pipedream-intro-vgg16-overhead-85": (largest_of_vgg16(frame), reading),
    }
    if math.isnan(found.next_workers):  # of a single count of workers, that has no next
        del values["pipedream-fig1-takeaway-workers"]
    made = {claim: Finding.simulated(claim, *row, "figure1.svg") for claim, row in values.items()}
    otherwise = {
        "pipedream-fig1-takeaway-heavy-models": (OVERLAP, least_apart, ONE_AFTER_THE_OTHER),
        "pipedream-fig1-takeaway-light-models": (OVERLAP, least_apart, ONE_AFTER_THE_OTHER),
        "pipedream-fig1-overhead-grid": (OVERLAP, apart_hold, ONE_AFTER_THE_OTHER),
        "pipedream-intro-vgg16-overhead-85": (
            "links of full duplex",
            largest_of_vgg16(grids[SHARED]),
            "both directions share a link (section 3.2)",
        ),
    }
    for claim, (cause, value, instead) in otherwise.items():
        made[claim] = made[claim].because(cause, value, changed=instead)
    return list(made.values())


def _apart(frame: pd.DataFrame) -> tuple[float, bool]:
    """Return how far heavy models are above light ones, and whether all orders hold, if gradients
    left only once the backward is over (simulated).
    """
    exchanged = frame["exchange_s"] / (frame["compute_s"] + frame["exchange_s"])
    found = orderings(frame.assign(overhead=100 * exchanged))
    return found.heavy_minus_light, found.hold


def figure1(frame: pd.DataFrame) -> go.Figure:
    """Draw what :func:`grid` returned as the paper does: a panel a GPU, a line a model.

    The fastest GPU's panel also has the paper's one number, VGG16's largest overhead (section 1).
    """
    title = f"At 10 Gbps, up to {largest_of_vgg16(frame):.0f} % of VGG16's step is communication"
    space = {"shared_yaxes": True, "horizontal_spacing": 0.04}
    drawn = make_subplots(cols=len(GPUS), subplot_titles=GPUS, **space)
    drawn.update_layout(style.layout(300, f"{title} (simulated)"), height=460)
    drawn.update_layout(margin={"t": 64, "b": 96}, title={"pad": {"b": 30}})
    counts = sorted(frame["workers"].unique())
    ticks = {"tickvals": counts, "ticktext": [str(count) for count in counts]}
    printed = [counts[0], counts[-1]], [PRINTED] * 2, f"vgg16, up to (paper): {PRINTED} %"
    with_line(drawn, *printed, "dot", row=1, col=len(GPUS))
    for column, gpu in enumerate(GPUS, start=1):
        own, axes = frame[frame["gpu"] == gpu], ("workers", "overhead", "model")
        for line in plots.curves(own, *axes, title=gpu, label="simulated").data:
            line.update(showlegend=column == 1, legendgroup=line.name)
            drawn.add_trace(line, row=1, col=column)
    drawn.update_xaxes(style.axis("data-parallel workers", type="log", **ticks))
    drawn.update_yaxes(style.axis(range=[0, 100]))
    return drawn.update_yaxes(style.axis("overhead (% of a step)"), col=1)
