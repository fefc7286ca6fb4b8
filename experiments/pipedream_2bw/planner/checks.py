"""PipeDream-2BW's planner beside every configuration, and beside PipeDream's (sections 4, 6)."""

import random
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import pandas as pd

from experiments.pipedream_2bw.planner.configurations import Configuration, every_configuration
from experiments.pipedream_2bw.throughput.rates import BATCHES, batch_seconds
from experiments.study.timing import in_turns
from pipekit.clusters import Cluster, Device, Level
from pipekit.planning import plan
from pipekit.planning.sweep import block_balance, sweep
from pipekit.plans import Plan
from pipekit.profiling import LayerProfile, Profile
from pipekit.schedules import Schedule, replicate, two_bw
from pipekit.simulation import simulate


class Problem(NamedTuple):
    """What a planner is asked; profiles are by rows of the microbatch, a batch has ``max_batch``.

    The optimizer keeps so many tensors of a parameter's size for each.
    """

    profiles: Mapping[int, Profile]
    cluster: Cluster
    max_batch: int
    optimizer_states: float = 2

    def plan(self) -> Plan:
        """Return what 2BW's planner answers."""
        return plan(self.profiles, self.cluster, "parallel_pipelines", **self._limits)

    def sweep(self) -> pd.DataFrame:
        """Return what 2BW's planner compares and a worker's memory holds: see :func:`sweep`."""
        table = sweep(self.profiles, self.cluster, **self._limits)
        return table[table["fits"]]

    @property
    def _limits(self) -> dict[str, Any]:
        return {"max_batch": self.max_batch, "optimizer_states": self.optimizer_states}

    def fitting(self) -> list[Configuration]:
        """Return all configurations that a worker's memory holds."""
        found = every_configuration(*self)
        return [each for each in found if each.bytes <= self.cluster.device.memory_bytes]


class Answer(NamedTuple):
    """A plan beside all configurations that fit.

    ``error`` is the relative difference of its throughput from the best one's; ``fits``: it is
    within memory and batch, with as many microbatches as the batch allows; ``largest``: none as
    fast, on as few workers, has larger microbatches; ``equally``: all its stages have as many
    replicas.
    """

    plan: Plan
    error: float
    fits: bool
    largest: bool
    equally: bool


def answer(problem: Problem) -> Answer:
    """Return the planner's answer, judged."""
    found, fitting = problem.plan(), problem.fitting()
    width, rows = found.replicas[0], found.microbatch_rows
    best = max(each.throughput for each in fitting)
    workers = found.workers, found.stages[0].recompute == "always"
    rivals = [
        each.rows
        for each in fitting
        if each.throughput >= best * (1 - 1e-9)
        and (each.width * each.depth, each.recompute) == workers
    ]
    return Answer(
        plan=found,
        error=abs(width * rows / found.predicted_s / best - 1),
        fits=found.memory_bytes <= problem.cluster.device.memory_bytes
        and found.microbatches == problem.max_batch // (width * rows),
        largest=rows == max(rivals),
        equally=len(set(found.replicas)) == 1,
    )


def random_problem(generator: random.Random) -> Problem:
    """Return few random layers on two random servers, whose memory holds some configurations."""
    draw = generator.uniform
    layers = tuple(
        LayerProfile(f"layer {i}", draw(1, 5), draw(1, 9), draw(0, 9), draw(1, 9), draw(0, 9), True)
        for i in range(generator.randint(1, 5))
    )
    one = Profile(layers, input_bytes=draw(0, 5))
    links = (Level("inner", generator.randint(1, 3), draw(2, 9)), Level("outer", 2, draw(0.5, 4)))
    device = Device("any", float("inf"), {}, float("inf"))
    unlimited = Problem(
        {rows: one.scaled(rows) for rows in (1, 2, 4)}, Cluster("random", device, links), 8
    )
    least = min(each.bytes for each in unlimited.fitting())
    limited = replace(device, memory_bytes=least * draw(1, 3))
    return unlimited._replace(cluster=replace(unlimited.cluster, device=limited))


def largest_rows(problem: Problem) -> dict[tuple[int, bool], int]:
    """Return the most rows a microbatch that fit, by (depth, whether recomputed), one by one."""
    largest: Counter[tuple[int, bool]] = Counter()
    for each in problem.fitting():
        key = each.depth, each.recompute
        largest[key] = max(largest[key], each.rows)
    return dict(largest)


def pipelines_in_servers(schedule: Schedule, width: int) -> Schedule:
    """Return parallel pipelines with each pipeline's workers side by side, not each stage's."""
    depth = len(schedule.workers) // width
    order = (s * width + r for r in range(width) for s in range(depth))
    return replace(schedule, head=tuple(schedule.workers[worker] for worker in order))


def planning_seconds(problem: Problem, repeats: int) -> tuple[float, float]:
    """Return how long 2BW's and PipeDream's planners take for the same costs (measured)."""
    smallest, states = problem.profiles[min(problem.profiles)], problem.optimizer_states

    def pipedream() -> Plan:
        return plan(smallest, problem.cluster, optimizer_states=states)

    ours, theirs = in_turns([problem.plan, pipedream], repeats, time.perf_counter).min(axis=0)
    return ours, theirs


def simulated_rate(problem: Problem, row: pd.Series) -> float:
    """Return the rows a second of a row of the sweep, simulated event by event."""
    width, depth, rows = (int(row[name]) for name in ("width", "depth", "microbatch_rows"))
    profile = problem.profiles[rows]
    stages = Plan.by_hand(
        block_balance(profile, depth),
        rows=rows,
        replicas=[width] * depth,
        recompute="always" if row["recompute"] else "never",
    )
    table = replicate(two_bw(depth, int(row["microbatches"])).take(BATCHES), width)
    trace = simulate(table, profile, stages, problem.cluster)
    return float(row["batch_rows"]) / batch_seconds(trace, BATCHES)
