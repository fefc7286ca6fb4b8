"""What each method of the sweep takes on the papers' machines (simulated), and the sweep's figures.

All make an update of equally many samples, which only methods with microbatches cut.  Data
parallelism is not a pipeline and has no seconds here.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import pandas as pd
import plotly.graph_objects as go

from experiments.staleness import comparison
from experiments.staleness.comparison import OWN, arm_name
from experiments.staleness.methods import BSP, METHODS, SYNC
from experiments.study.costs import published
from experiments.study.traces import mean_interval, memory_of
from pipekit import plots, schedules
from pipekit.clusters import Cluster, named
from pipekit.planning.sweep import block_balance
from pipekit.plans import Plan
from pipekit.profiling import Profile
from pipekit.schedules import Schedule
from pipekit.simulation import simulate
from pipekit.units import bytes_text

BATCHES = 3  # of a simulated run, besides those that fill the pipeline


class Taken(NamedTuple):
    """What a method takes: seconds of an update, and bytes of the worker that needs most."""

    seconds: float
    memory_bytes: float


@dataclass(frozen=True)
class Machines:
    """A model on a cluster: one pipeline."""

    model: str = "gpt-1.3B"  # a name of pipekit.models.PUBLISHED, in float32
    cluster: str = "2bw-v100"  # a name of pipekit.names.CLUSTERS
    stages: int = 4  # one worker each
    rows: int = 32  # samples of an update
    microbatches: int = 8  # at least as many as stages, for methods that have some
    optimizer_states: float = 2  # tensors of a parameter's size that the optimizer keeps
    recompute: bool = True  # whether a stage keeps only what it received

    def schedule(self, method: str) -> Schedule:
        """Return a method's schedule, without end."""
        if method == SYNC:
            return schedules.flush(self.stages, self.microbatches)
        if METHODS[method].equation == "2bw":  # synchronous training first is over before long
            return schedules.two_bw(self.stages, self.microbatches)
        return METHODS[method].schedule(self.stages)


@cache  # explorers ask again and again
def point(asked: Machines, method: str) -> Taken:
    schedule = asked.schedule(method)
    parts = schedule.batch_stops[0]
    machines, rows = named(asked.cluster), asked.rows // parts
    profile = _one_row(asked.model, machines)
    balance = block_balance(profile, asked.stages)
    plan = Plan.by_hand(balance, rows=rows, recompute="always" if asked.recompute else "never")
    mitigation = METHODS[method].mitigation
    trace = simulate(
        schedule.take(asked.stages + BATCHES),
        profile.scaled(rows),
        plan,
        machines,
        optimizer_states=asked.optimizer_states,
        mitigation=mitigation and mitigation(1),
    )
    ends = trace.ends("BACKWARD", stage=asked.stages - 1, group=parts)
    seconds = mean_interval(ends, len(ends) - BATCHES, len(ends) - 1)
    return Taken(seconds, float(max(memory_of(trace).peak_bytes)))


@cache
def _one_row(model: str, cluster: Cluster) -> Profile:
    return published(model, 1, cluster.device)


def points(machines: Machines, table: pd.DataFrame, proxy: str, optimizer: str) -> pd.DataFrame:
    """Return all measured methods at this depth as points: a row each."""
    own = table[(table["proxy"] == proxy) & (table["optimizer"] == optimizer)]
    rows = own[(own["at"] == OWN) & (own["method"] != BSP)].itertuples()
    found = []
    for row in rows:
        if METHODS[row.method].stages or row.stages == machines.stages:
            seconds, size = point(machines, row.method)
            arm = arm_name(row.method, row.stages)
            found.append((row.method, arm, seconds / machines.rows, row.loss, row.std, size))
    columns = ["method", "arm", "seconds", "loss", "std", "memory_bytes"]
    return pd.DataFrame(found, columns=columns).assign(label="simulated; loss measured")


PAD = 0.05  # of an axis, beyond what is compared
MOST = 0.75  # of a course's later points, which are in the picture
MARKER_PX = 8, 20  # of the least and the greatest memory


def course(
    trainings: pd.DataFrame, proxy: str, optimizer: str, arms: Sequence[str] = ()
) -> tuple[go.Figure, pd.DataFrame]:
    """Return the validation loss of arms at their own rates, bands over seeds, and its numbers."""
    frame = comparison.courses(trainings)
    frame = frame[(frame["proxy"] == proxy) & (frame["optimizer"] == optimizer)]
    frame = _by_method(frame[frame["arm"].isin(arms or frame["arm"])])
    # Where the untrained networks are, far above, nothing is to be compared.
    shown = frame[frame["updates"] > 0].assign(label="measured")
    how = {"title": f"{proxy}, {optimizer}: validation loss, each at its own rate"}
    how |= {"label": "measured", "y_title": "loss (nats)"}
    figure = plots.bands(shown, "updates", "loss", "arm", **how)
    return figure.update_yaxes(range=_loss_range(shown)), shown


def speed(points: pd.DataFrame, title: str) -> tuple[go.Figure, pd.DataFrame]:
    """Return speed against staleness: a point a method, as large as its memory, and its numbers."""
    shown = _by_method(points)
    sizes = shown["memory_bytes"]
    shown = shown.assign(
        name=shown["arm"] + ", " + sizes.map(bytes_text), milliseconds=1e3 * shown["seconds"]
    )
    x_title = "time of a sample (ms, simulated)"
    y_title = "validation loss at the end (nats, measured)"
    how: Any = {"label": "simulated x measured", "x_title": x_title, "y_title": y_title}
    figure = plots.points(shown, "milliseconds", "loss", "name", title=title, **how)
    least, most = MARKER_PX
    for trace, share in zip(figure.data, sizes / sizes.max(), strict=True):
        trace.marker.size = least + (most - least) * share
        trace.marker.opacity = 0.8
    return figure, shown


def _by_method(frame: pd.DataFrame) -> pd.DataFrame:
    """Return its rows with no delay first, so that the commonest methods look alike everywhere."""
    return frame.sort_values("method", key=lambda each: each.map([*METHODS].index), kind="stable")


def _loss_range(shown: pd.DataFrame) -> list[float]:
    """Return the range of losses in which courses are compared, without single seeds' spikes."""
    means = shown.groupby(["arm", "updates"])["loss"].mean()
    later = [own.iloc[len(own) // 3 :].quantile(MOST) for _, own in means.groupby("arm")]
    low, high = shown["loss"].min(), max(later)
    return [low - PAD * (high - low), high + PAD * (high - low)]
