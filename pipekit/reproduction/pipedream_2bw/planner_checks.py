"""PipeDream-2BW's planner beside every configuration tried one by one (sections 4, 6)."""

import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import accumulate
from typing import NamedTuple

import pandas as pd

from pipekit.clusters import Cluster, Device, Level
from pipekit.planning import plan
from pipekit.planning.sweep import block_balance, sweep
from pipekit.plans import Plan
from pipekit.profiling import LayerProfile, Profile
from pipekit.reproduction.pipedream_2bw.throughput import BATCHES, batch_seconds
from pipekit.schedules import Schedule, replicate, two_bw
from pipekit.simulation import simulate


class Configuration(NamedTuple):
    """Parallel pipelines, and what they would take.

    Attributes:
        width: pipelines, w.
        depth: stages, d.
        rows: of a microbatch, b.
        recompute: whether everything but the stages' inputs is recomputed.
        microbatches: of a pipeline in a batch, m.
        seconds: a microbatch.
        bytes: of the fullest worker.
    """

    width: int
    depth: int
    rows: int
    recompute: bool
    microbatches: int
    seconds: float
    bytes: float

    @property
    def throughput(self) -> float:
        """Rows a second of all pipelines."""
        return self.width * self.rows / self.seconds


def every_configuration(
    profiles: Mapping[int, Profile], cluster: Cluster, max_batch: int, optimizer_states: float
) -> Iterator[Configuration]:
    """Yield all that section 4 searches, by its cost model written out for one at a time.

    Args:
        profiles: by rows of the microbatch.
        cluster: whose members have links of their own.
        max_batch: rows of a global batch at most.
        optimizer_states: tensors of a parameter's size that the optimizer keeps for each.
    """
    layers = len(next(iter(profiles.values())))
    for depth in range(1, min(cluster.workers, layers) + 1):
        balance = block_balance(profiles[min(profiles)], depth)
        for width in range(1, cluster.workers // depth + 1):
            for rows, profile in profiles.items():
                microbatches = max_batch // (width * rows)
                if rows > max_batch or microbatches < depth:
                    continue
                for recompute in (False, True):
                    seconds = _seconds(profile, balance, cluster, width, microbatches, recompute)
                    size = _bytes(profile, balance, optimizer_states, recompute)
                    yield Configuration(width, depth, rows, recompute, microbatches, seconds, size)


class Problem(NamedTuple):
    """What a planner is asked.

    Attributes:
        profiles: by rows of the microbatch.
        cluster: the workers and their links.
        max_batch: rows of a global batch at most.
        optimizer_states: tensors of a parameter's size that the optimizer keeps for each.
    """

    profiles: Mapping[int, Profile]
    cluster: Cluster
    max_batch: int
    optimizer_states: float = 2

    def plan(self) -> Plan:
        """Return what 2BW's planner answers."""
        return plan(
            self.profiles,
            self.cluster,
            "parallel_pipelines",
            max_batch=self.max_batch,
            optimizer_states=self.optimizer_states,
        )

    def sweep(self) -> pd.DataFrame:
        """Return what 2BW's planner compares and a worker's memory holds: see :func:`sweep`."""
        table = sweep(
            self.profiles,
            self.cluster,
            max_batch=self.max_batch,
            optimizer_states=self.optimizer_states,
        )
        return table[table["fits"]]

    def fitting(self) -> list[Configuration]:
        """Return all configurations that a worker's memory holds."""
        found = every_configuration(*self)
        return [each for each in found if each.bytes <= self.cluster.device.memory_bytes]


class Answer(NamedTuple):
    """A plan beside all configurations that fit.

    Attributes:
        plan: the planner's.
        error: relative difference of its throughput from the best one's.
        fits: whether it is within memory and batch, with as many microbatches as the batch allows.
        largest: whether no configuration as fast, on as few workers, has larger microbatches.
        equally: whether all its stages have as many replicas.
    """

    plan: Plan
    error: float
    fits: bool
    largest: bool
    equally: bool


def answer(problem: Problem) -> Answer:
    """Return the planner's answer, judged."""
    found, fitting = problem.plan(), problem.fitting()
    width = found.replicas[0]
    throughput = width * found.microbatch_rows / found.predicted_s
    best = max(each.throughput for each in fitting)
    recompute = found.stages[0].recompute == "always"
    rivals = [
        each.rows
        for each in fitting
        if each.throughput >= best * (1 - 1e-9)
        and (each.width * each.depth, each.recompute) == (found.workers, recompute)
    ]
    return Answer(
        found,
        abs(throughput / best - 1),
        found.memory_bytes <= problem.cluster.device.memory_bytes
        and found.microbatches == problem.max_batch // (width * found.microbatch_rows),
        found.microbatch_rows == max(rivals),
        len(set(found.replicas)) == 1,
    )


def random_problem(generator: random.Random) -> Problem:
    """Return few random layers on two random servers, whose memory holds some configurations."""
    draw = generator.uniform
    layers = tuple(
        LayerProfile(f"layer {i}", draw(1, 5), draw(1, 9), draw(0, 9), draw(1, 9), draw(0, 9), True)
        for i in range(generator.randint(1, 5))
    )
    one = Profile(layers, input_bytes=draw(0, 5))
    links = (
        Level("inner", generator.randint(1, 3), draw(2, 9)),
        Level("outer", 2, draw(0.5, 4)),
    )
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
    return replace(schedule, workers=tuple(schedule.workers[worker] for worker in order))


def planning_seconds(problem: Problem, repeats: int) -> tuple[float, float]:
    """Return how long 2BW's and PipeDream's planners take for the same costs, measured here.

    Args:
        problem: PipeDream's plans for its smallest microbatch.
        repeats: of each, of which the fastest counts.
    """
    smallest = problem.profiles[min(problem.profiles)]
    states = problem.optimizer_states
    planners: list[Callable[[], Plan]] = [
        problem.plan,
        lambda: plan(smallest, problem.cluster, optimizer_states=states),
    ]
    best = [float("inf")] * len(planners)
    for _ in range(repeats):
        for which, planner in enumerate(planners):
            start = time.perf_counter()
            planner()
            best[which] = min(best[which], time.perf_counter() - start)
    return best[0], best[1]


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
    table = replicate(two_bw(depth, int(row["microbatches"]), BATCHES), width)
    trace = simulate(table, profile, stages, problem.cluster)
    return float(row["batch_rows"]) / batch_seconds(trace, BATCHES)


def _seconds(
    profile: Profile,
    balance: list[int],
    cluster: Cluster,
    width: int,
    microbatches: int,
    recompute: bool,
) -> float:
    """Return max over stages of max(compute + transfers, all-reduce / m)."""
    stops = list(accumulate(balance))
    passing = [
        _passing(cluster, width, stage, profile.boundary_bytes(stop))
        for stage, stop in enumerate(stops[:-1])
    ]
    slowest = 0.0
    for stage, (stop, length) in enumerate(zip(stops, balance, strict=True)):
        whole = profile.stage(stop - length, stop)
        busy = (1 + recompute) * whole.forward_s + whole.backward_s + whole.update_s / microbatches
        busy += passing[stage - 1] if stage else 0
        busy += passing[stage] if stage < len(passing) else 0
        reducing = 0.0
        if width > 1:
            level = cluster.level_between(stage * width, (stage + 1) * width - 1)
            reducing = 2 * (width - 1) / width * whole.parameter_bytes / level.used_bandwidth
        slowest = max(slowest, busy, reducing / microbatches)
    return slowest


def _passing(cluster: Cluster, width: int, stage: int, size: float) -> float:
    """Return the seconds in which every pipeline passes ``size`` bytes to its next stage."""
    busy: Counter[tuple[str, str, int]] = Counter()
    for replica in range(width):
        source = stage * width + replica
        level = cluster.level_between(source, source + width)
        for way, worker in (("out", source), ("in", source + width)):
            busy[level.name, way, cluster.member(worker, level)] += 1
    used = {level.name: level.used_bandwidth for level in cluster.levels}
    return max(count * size / used[name] for (name, _, _), count in busy.items())


def _bytes(profile: Profile, balance: list[int], optimizer_states: float, recompute: bool) -> float:
    """Return the fullest worker's: two versions, gradients, optimizer, buffers, activations."""
    stops, fullest = list(accumulate(balance)), 0.0
    for stage, (stop, length) in enumerate(zip(stops, balance, strict=True)):
        whole, in_flight = profile.stage(stop - length, stop), len(balance) - stage
        made = whole.saved_bytes + (0 if whole.saves_output else whole.output_bytes)
        fullest = max(
            fullest,
            (2 + 1 + optimizer_states) * whole.parameter_bytes
            + whole.buffer_bytes
            + in_flight * profile.boundary_bytes(stop - length)
            + (1 if recompute else in_flight) * made,
        )
    return fullest
