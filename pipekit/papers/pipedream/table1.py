"""PipeDream's Table 1 and Figure 13, predicted from profiles (sections 5.2 and 5.3).

Each cell is asked of the planner, the simulator and the emulator.  A bandwidth is fitted on one BSP
cell for each network and cluster (:mod:`pipekit.papers.pipedream.calibration`); all other
numbers are predictions.
"""

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import combinations
from statistics import median
from typing import NamedTuple

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import torch
from torch import nn

from pipekit import schedules
from pipekit.clusters import Cluster
from pipekit.clusters.traffic import all_reduce_bytes
from pipekit.emulation import emulate
from pipekit.engine import Pipeline
from pipekit.papers.pace import faster_links, stretched
from pipekit.papers.pipedream.calibration import (
    TABLE1,
    Method,
    pipelined,
    printed,
    simulated_seconds,
    steady_seconds,
    window,
)
from pipekit.planning.layer_ranges import LayerRanges
from pipekit.planning.objectives import Bytes, Cost, Seconds
from pipekit.plans import Plan
from pipekit.plots import style
from pipekit.profiling import Profile
from pipekit.schedules import Op, Schedule, Task, optimal_in_flight
from pipekit.schedules.methods.one_f_one_b import alternate

BAR_PX = 17
PATTERNS = "", "/", "x"
"""Of the first, second and third bar of a row, for greyscale."""


def replicas_of(config: str) -> list[int]:
    """Return the replicas of each stage of a configuration as printed: "2-1-1" is [2, 1, 1].

    Raises:
        ValueError: it is not numbers above 0 joined by hyphens.
    """
    if not re.fullmatch(r"[1-9]\d*(-[1-9]\d*)*", config):
        raise ValueError(f"{config!r} is no configuration: write replicas like 2-1-1")
    return [int(count) for count in config.split("-")]


def rows_consistent() -> int:
    """Return how many rows of Table 1 print the quotient of their own speedups.

    Its numbers look truncated, so that a printed x may be anything from x up to x + 0.01.
    """
    consistent = 0
    for row in TABLE1:
        bsp, pp, ratio = (
            round(100 * float(printed(row, column)))
            for column in ("bsp-speedup", "pp-speedup", "pp-over-bsp")
        )
        least, most = 100 * pp / (bsp + 1), 100 * (pp + 1) / bsp
        consistent += least < ratio + 1 and most > ratio
    return consistent


def best_cut(
    profile: Profile, cluster: Cluster, replicas: Sequence[int], cost: Cost = "paper"
) -> Plan:
    """Return the plan with these replicas that the planner's cost model finds the fastest.

    It tries all cuts: a configuration as published says how many workers a stage has, not where it
    ends.

    Args:
        profile: costs of a minibatch on one worker.
        cluster: with one level of links.
        replicas: workers of each stage.
        cost: see :func:`pipekit.planning.pipedream.pipedream`.

    Raises:
        ValueError: no cut fits the workers' memory.
    """
    (level,), spans, layers = cluster.levels, LayerRanges(profile), len(profile)
    objective = Seconds(
        spans, [level], cost, Bytes(spans, optimizer_states=1), cluster.device.memory_bytes
    )
    in_flight = optimal_in_flight(replicas)
    stages = [
        objective.replicated(objective.worker(passing), 0, count)
        for passing, count in zip(in_flight, replicas, strict=True)
    ]
    passing = objective.transfer(0)
    inner = np.array(list(combinations(range(1, layers), len(replicas) - 1)), dtype=int)
    edges = np.pad(inner, ((0, 0), (1, 1)), constant_values=(0, layers))  # [cuts, stages + 1]
    parts = [stage[edges[:, i], edges[:, i + 1]] for i, stage in enumerate(stages)]
    seconds = np.max([*parts, *(passing[cut] for cut in inner.T)], axis=0)
    best = int(seconds.argmin())
    if np.isinf(seconds[best]):
        raise ValueError(f"no cut for replicas {list(replicas)} fits the workers' memory")
    plan = Plan.by_hand(np.diff(edges[best]).tolist(), rows=profile.rows, replicas=replicas)
    return replace(plan, in_flight=in_flight[0], predicted_s=float(seconds[best]))


def one_at_a_time(plan: Plan, minibatches: int) -> Schedule:
    """Return model parallelism's schedule for a plan (section 5.3)."""
    return schedules.model_parallel(len(plan.stages), minibatches)


def twice_in_flight(plan: Plan, minibatches: int) -> Schedule:
    """Return PipeDream's schedule with twice as many minibatches in flight on every worker.

    NOAM minibatches (section 3.2) are as many as can be at work: none is left over to travel, or to
    wait for the others of its round.  For study: weights get as much staler.
    """
    table, counts = pipelined(plan, minibatches), schedules.optimal_in_flight(plan.replicas)
    workers = []
    for tasks in table.workers:
        _, stage, first, _ = tasks[0]
        updates = (task for task in tasks if task.op is Op.UPDATE)
        order = []
        own = range(first, minibatches, plan.replicas[stage])
        for op, microbatch in alternate(own, 2 * counts[stage]):
            order.append(Task(op, stage, microbatch, 0))
            if op is Op.BACKWARD:
                order.append(next(updates))
        workers.append(_reading_newest([*order, *updates]))
    return replace(table, workers=tuple(workers), name=f"{table.name}, 2 x NOAM")


def _reading_newest(tasks: Iterable[Task]) -> tuple[Task, ...]:
    """Return one stage's tasks, every forward reading the newest version, and its backward too."""
    newest, reads, result = 0, dict[int, int](), list[Task]()
    for task in tasks:
        if task.op is Op.UPDATE:
            newest = task.version
        elif task.op is Op.FORWARD:
            reads[task.microbatch] = newest
        version = newest if task.op is Op.UPDATE else reads[task.microbatch]
        result.append(task._replace(version=version))
    return tuple(result)


class Sent(NamedTuple):
    """Bytes that all workers together send a minibatch, each byte counted once.

    Attributes:
        weights: gradients of weights, and the sums.
        activations: activations and their gradients.
    """

    weights: float
    activations: float

    @property
    def total(self) -> float:
        """Both."""
        return self.weights + self.activations


def sent(profile: Profile, plan: Plan) -> Sent:
    """Return the closed form of what a plan sends (section 3.2).

    In a round of m minibatches each of m replicas sends 2 (m - 1) / m |w| and receives as much:
    the paper's 4 (m - 1) / m |w| counts both.  A cut is passed by an activation and its gradient.
    """
    weights = sum(
        all_reduce_bytes(profile.stage(s.first, s.stop).parameter_bytes, s.replicas)
        for s in plan.stages
    )
    cuts = (profile.boundary_bytes(stage.first) for stage in plan.stages[1:])
    return Sent(weights, 2 * sum(cuts))


def reduction(ours: Sent, bsp: Sent, activations_once: bool = False) -> float:
    """Return by what part (0 to 1) less is sent than by data parallelism.

    Args:
        ours: what a plan sends.
        bsp: what data parallelism sends.
        activations_once: count weights at both ends of a link, as 4 (m - 1) / m |w| does, and
            activations at one; by default both are counted alike.
    """
    return 1 - (ours.total - ours.activations / 2 * activations_once) / bsp.total


def link_seconds(profile: Profile, plan: Plan, cluster: Cluster) -> float:
    """Return the seconds a minibatch that the busiest link needs in each direction.

    A plan cannot be faster; it can be as fast if its messages and sums share links perfectly.
    """
    return max(
        (
            all_reduce_bytes(profile.stage(s.first, s.stop).parameter_bytes, s.replicas)
            + (profile.boundary_bytes(s.first) if s.first else 0)
            + (profile.boundary_bytes(s.stop) if s.stop < len(profile) else 0)
        )
        / (s.replicas * cluster.levels[0].used_bandwidth)
        for s in plan.stages
    )


class Result(NamedTuple):
    """A plan, simulated and emulated.

    Attributes:
        plan: what was run.
        simulated_s: seconds a minibatch in steady state.
        emulated_s: likewise, of the profile's time: what the emulation was sped up by is undone.
        sent: bytes a minibatch by the engine's counters.
        closed: the same by the closed form.
        uneven: most bytes that a worker sent and received a minibatch more or less than the mean.
    """

    plan: Plan
    simulated_s: float
    emulated_s: float
    sent: Sent
    closed: Sent
    uneven: float

    @property
    def excess(self) -> float:
        """The engine's bytes a minibatch minus the closed form's."""
        return self.sent.total - self.closed.total


def run(
    profile: Profile,
    plan: Plan,
    cluster: Cluster,
    *,
    method: Method = pipelined,
    minibatches: int,
    faster: float,
    repeats: int = 1,
) -> Result:
    """Simulate and emulate a plan.

    Args:
        profile: costs of a minibatch on one worker.
        plan: what to run.
        cluster: the links, one level.
        method: makes the schedule.
        minibatches: to be emulated in steady state, at least.
        faster: by what factor time runs faster in the emulation.
        repeats: emulations, of which the median counts.
    """
    counted = window(plan.replicas, minibatches)
    table = method(plan, counted.minibatches)
    quick, links = stretched(profile, 1 / faster), faster_links(cluster, faster)
    runs = [emulate(table, quick, plan, links) for _ in range(repeats)]
    traffic = runs[0].traffic.assign(bytes=runs[0].traffic["bytes"] / counted.minibatches)
    weights = traffic["purpose"] == "weights"
    return Result(
        plan,
        simulated_seconds(profile, plan, cluster, method),
        median(steady_seconds(each.trace, counted) for each in runs) * faster,
        Sent(
            float(traffic.loc[weights, "bytes"].sum()), float(traffic.loc[~weights, "bytes"].sum())
        ),
        sent(profile, plan),
        _uneven(traffic[weights]),
    )


def _uneven(traffic: pd.DataFrame) -> float:
    ends = pd.concat([traffic.groupby(end)["bytes"].sum() for end in ("source", "destination")])
    each = ends.groupby(level=0).sum()
    return float((each - each.mean()).abs().max()) if len(each) else 0.0


def formula_speedup(workers: int, calibrated_on: tuple[int, float]) -> float:
    """Return BSP's speedup if traffic were all, 4 (m - 1) / m |w| a worker, and nothing overlapped.

    Args:
        workers: for which.
        calibrated_on: workers and speedup of one row.
    """
    known, speedup = calibrated_on
    a_byte = (known / speedup - 1) * known / (known - 1)  # of computing time, for each |w| sent
    return workers / (1 + a_byte * (workers - 1) / workers)


def overhead(speedup: float, workers: int) -> float:
    """Return the part of the time (0 to 1) that workers do not compute."""
    return 1 - speedup / workers


def overhead_removed(speedup: float, bsp: float, workers: int) -> float:
    """Return the part (1 if all) of BSP's communication overhead that a plan has not."""
    return 1 - overhead(speedup, workers) / overhead(bsp, workers)


def gradient_difference(workers: int) -> float:
    """Return how far data parallelism's gradient is from that of one big batch, relative to it.

    A small network in float64 makes one update at learning rate 1 on the real engine, as one stage
    on so many workers (section 4); the update is the gradient.
    """
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(20, 32), nn.Tanh(), nn.Linear(32, 10)).double()
    inputs = torch.randn(workers, 16, 20, dtype=torch.float64)
    targets = torch.randint(10, (workers, 16))
    pipeline = Pipeline(
        model,
        lambda minibatches: schedules.pipedream([workers], minibatches),
        balance=[len(model)],
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=1.0),
        loss=nn.CrossEntropyLoss(),
    )
    pipeline.train(list(zip(inputs, targets, strict=True)))
    after = pipeline.state_dict()
    nn.CrossEntropyLoss()(model(inputs.flatten(0, 1)), targets.flatten()).backward()
    apart = whole = 0.0
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None
        step = parameter.detach() - after[name]
        apart += float((step - parameter.grad).square().sum())
        whole += float(parameter.grad.square().sum())
    return math.sqrt(apart / whole)


def bars(frame: pd.DataFrame, *, title: str, label: str, x_title: str) -> go.Figure:
    """Draw a horizontal bar for each row of columns "row", "source" and "value", sources side by
    side.

    Args:
        frame: in the order from the top.
        title: what is shown, without the label.
        label: what the numbers are.
        x_title: with its unit.
    """
    rows, sources = list(frame["row"].unique()), list(frame["source"].unique())
    thick = 0.8 / len(sources)
    figure = go.Figure(layout=style.layout(BAR_PX * len(rows) * len(sources), f"{title} ({label})"))
    for position, source in enumerate(sources):
        part = frame[frame["source"] == source]
        places = part["row"].map(rows.index) + thick * (position - (len(sources) - 1) / 2)
        figure.add_bar(
            name=source,
            orientation="h",
            y=places.to_numpy(),
            base=np.zeros(len(part)),
            x=part["value"].to_numpy(),
            width=thick,
            marker={
                "color": style.SERIES_COLORS[position],
                "line": {"width": 0},
                "pattern": {"shape": PATTERNS[position], "fgcolor": "black", "fgopacity": 0.5},
            },
        )
    figure.update_xaxes(style.axis(x_title), range=[0, 1.05 * float(frame["value"].max())])
    figure.update_yaxes(
        style.axis(tickvals=list(range(len(rows))), ticktext=rows, showgrid=False),
        range=[len(rows) - 0.5, -0.5],
    )
    figure.update_layout(margin={"l": 8 * max(map(len, rows)) + 16})
    return figure
