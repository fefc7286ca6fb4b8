"""PipeDream's planner (section 3.2), held against its own equations, brute force and simulation."""

import math
import random
from collections.abc import Iterator, Sequence
from itertools import combinations, pairwise, product
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from pipekit.clusters import Cluster, Level, flat
from pipekit.papers.pipedream.timelines import (
    one_f_one_b,
    seconds_a_minibatch,
    with_links_as_stages,
)
from pipekit.planning import pipedream
from pipekit.planning.bottleneck import BottleneckProgram, Objective
from pipekit.planning.layer_ranges import Floats, LayerRanges
from pipekit.planning.objectives import Bytes, Seconds
from pipekit.plans import Plan
from pipekit.profiling import LayerProfile, Profile
from pipekit.schedules import Schedule
from pipekit.schedules import pipedream as schedule
from pipekit.simulation import simulate

Stages = Sequence[tuple[int, int, int]]
"""(first layer, layer after the last, workers) of each stage."""


class Instance(NamedTuple):
    """One planning problem: layers, machines, and bytes/s of each machine's link."""

    profile: Profile
    machines: int
    bandwidth: float

    @property
    def layers(self) -> int:
        """How many layers the model has."""
        return len(self.profile)

    def plan(self) -> Plan:
        """Return what pipekit's planner answers."""
        return pipedream(self.profile, flat(self.machines, self.bandwidth), optimizer_states=0)

    def stage_s(self, first: int, stop: int, replicas: int) -> float:
        """Return T(i->j, m) of section 3.2 as printed, for layers first to stop - 1."""
        chosen = self.profile.layers[first:stop]
        compute = sum(layer.forward_s + layer.backward_s for layer in chosen)
        sync = sum(
            4 * (replicas - 1) * layer.parameter_bytes / replicas / self.bandwidth
            for layer in chosen
        )
        return max(compute, sync) / replicas

    def transfer_s(self, layer: int) -> float:
        """Return 2 C_i: the activations of a layer and their gradients on a link."""
        return 2 * self.profile.layers[layer].output_bytes / self.bandwidth

    def recurrence(self) -> dict[tuple[int, int], float]:
        """Return A(j, m), j layers on m machines, by the paper's cases as printed."""
        best: dict[tuple[int, int], float] = {}
        for j, m in product(range(1, self.layers + 1), range(1, self.machines + 1)):
            best[j, m] = self.stage_s(0, j, m)
            for i, last in product(range(1, j), range(1, m)):
                slowest = max(best[i, m - last], self.transfer_s(i - 1), self.stage_s(i, j, last))
                best[j, m] = min(best[j, m], slowest)
        return best

    def brute_force(self) -> float:
        """Return the least time of the slowest stage or transfer over every possible plan."""
        stage_s = {
            (first, stop, m): self.stage_s(first, stop, m)
            for first, stop in combinations(range(self.layers + 1), 2)
            for m in range(1, self.machines + 1)
        }
        return min(
            max(
                *(stage_s[stage] for stage in stages),
                *(self.transfer_s(stop - 1) for _, stop, _ in stages[:-1]),
                0.0,
            )
            for machines in range(1, self.machines + 1)
            for stages in _every_plan(self.layers, machines)
        )


def random_instance(generator: random.Random, layers: int = 8, machines: int = 6) -> Instance:
    """Return a planning problem of at most so many layers and machines."""
    made = tuple(
        LayerProfile(
            f"layer {number}",
            generator.uniform(0, 5),
            generator.uniform(0, 10),
            output_bytes=generator.uniform(0, 20),
            parameter_bytes=generator.uniform(0, 20) * generator.choice([0, 1, 10, 50]),
        )
        for number in range(generator.randint(1, layers))
    )
    bandwidth = generator.choice([4.0, 8.0, 16.0, 64.0, math.inf])
    return Instance(Profile(made), generator.randint(1, machines), bandwidth)


def check_plans(instances: Sequence[Instance]) -> pd.DataFrame:
    """Return, for each problem, the planner's seconds beside brute force and the paper's cases.

    Columns: layers, machines, config, planner, brute force, recurrence (seconds; the best on at
    most so many machines), stage error (largest relative |stage - T(i->j, m)|), NOAM (whether it
    is ceil(machines / machines in the input stage)).
    """
    rows = []
    for instance in instances:
        plan, table = instance.plan(), instance.recurrence()
        printed = [instance.stage_s(s.first, s.stop, s.replicas) for s in plan.stages]
        rows.append(
            {
                "layers": instance.layers,
                "machines": instance.machines,
                "config": plan.config,
                "planner": plan.predicted_s,
                "brute force": instance.brute_force(),
                "recurrence": min(
                    table[instance.layers, m] for m in range(1, instance.machines + 1)
                ),
                "stage error": max(
                    _error(stage.predicted_s, expected)
                    for stage, expected in zip(plan.stages, printed, strict=True)
                ),
                "NOAM": plan.in_flight == math.ceil(plan.workers / plan.replicas[0]),
            }
        )
    return pd.DataFrame(rows)


def largest_error(table: pd.DataFrame, column: str) -> float:
    """Return the largest relative difference of the planner from a column of a table."""
    return max(_error(a, b) for a, b in zip(table["planner"], table[column], strict=True))


def base_cases_hold(instance: Instance) -> bool:
    """Return whether the planner's answers are A(i, 1) = T(1->i, 1) and A(1, m) = T(1->1, m).

    One layer may leave machines idle, so that the second is compared with the best T(1->1, m')
    of m' <= m machines.
    """
    layers = instance.profile.layers
    one_machine = (
        (instance._replace(profile=Profile(layers[:i]), machines=1), instance.stage_s(0, i, 1))
        for i in range(1, instance.layers + 1)
    )
    one_layer = (
        (
            instance._replace(profile=Profile(layers[:1]), machines=m),
            min(instance.stage_s(0, 1, fewer) for fewer in range(1, m + 1)),
        )
        for m in range(1, instance.machines + 1)
    )
    return all(
        _error(problem.plan().predicted_s, expected) <= 1e-12
        for problem, expected in [*one_machine, *one_layer]
    )


class _Counted(np.ndarray[Any, Any]):
    """A matrix that counts the candidates that the dynamic program compares with it."""

    counter: "_CountingObjective"

    def __array_finalize__(self, source: Any) -> None:
        if isinstance(source, _Counted):
            self.counter = source.counter

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        plain = [np.asarray(item) for item in inputs]
        result = getattr(ufunc, method)(*plain, **options)
        if ufunc is not np.maximum or method != "__call__":
            return result
        # The program joins a stage with the best of the rest on [stop, stop]; what it compares
        # with the transfers has a row more than there are layers.
        if result.shape[0] <= self.counter.layers:
            self.counter.iterations += result.size
        return self.counter.watch(result)


class _CountingObjective:
    """The seconds of a plan, in matrices that count."""

    def __init__(self, seconds: Objective, layers: int) -> None:
        self._seconds, self.layers, self.iterations = seconds, layers, 0
        self.in_flight_matters = seconds.in_flight_matters
        self.receivers_count = seconds.receivers_count
        self.worker, self.transfer = seconds.worker, seconds.transfer

    def replicated(self, inner: Floats, level: int, members: int) -> Floats:
        return self.watch(self._seconds.replicated(inner, level, members))

    def watch(self, matrix: Floats) -> Floats:
        counted = matrix.view(_Counted)
        counted.counter = self
        return counted


def iterations(layers: int, widths: Sequence[int]) -> int:
    """Return how many candidates the planner's dynamic program looks at, by an instrumented run.

    A candidate is a first stage, so many machines for it, and a place where the rest begins.

    Args:
        layers: N, all alike.
        widths: members of each level of links, innermost first; [M] for M machines on one level.
    """
    profile = Profile.uniform(layers, 1.0, 2.0, output_bytes=1.0, parameter_bytes=1.0)
    levels = [Level(f"level {n}", width, 10.0) for n, width in enumerate(widths)]
    spans = LayerRanges(profile)
    seconds = Seconds(spans, levels, "paper", Bytes(spans, 0), math.inf)
    objective = _CountingObjective(seconds, layers)
    BottleneckProgram(objective, layers, widths).optimum()
    return objective.iterations


def slope(x: Sequence[float], y: Sequence[float]) -> float:
    """Return the slope of a straight line through (log x, log y), by least squares."""
    return float(np.polyfit(np.log(x), np.log(y), 1)[0])


def throughput_row(
    name: str, profile: Profile, cluster: Cluster, replicate: bool, rounds: int = 24
) -> dict[str, Any]:
    """Simulate a plan; return its throughput times A, 1 where the slowest stage decides.

    Args:
        name: of the network, for the table.
        profile: of a minibatch.
        cluster: where.
        replicate: whether stages may be replicated.
        rounds: of the round robin in steady state, at least.

    Returns:
        A row: "PipeDream" as published; "free links": the same plan where links cost nothing;
        "links as stages": in flight as many as if each link were one more stage.
    """
    plan = pipedream(profile, cluster, replicate=replicate)
    lap = math.lcm(*plan.replicas)
    count = 6 * plan.workers + lap * math.ceil(rounds / lap)
    more = with_links_as_stages(plan.replicas)

    def rate(table: Schedule, links: Cluster | None) -> float:
        trace = simulate(table, profile, plan, links)
        return plan.predicted_s / seconds_a_minibatch(trace, plan.replicas)

    published = schedule(plan.replicas, count)
    return {
        "network": name,
        "cluster": cluster.name,
        "machines": cluster.workers,
        "plan": plan.config,
        "A (ms)": 1e3 * plan.predicted_s,
        "kind": "replicated" if max(plan.replicas) > 1 else "straight",
        "PipeDream": rate(published, cluster),
        "free links": rate(published, None),
        "links as stages": rate(one_f_one_b(plan.replicas, count, more), cluster),
        "label": "simulated",
    }


def _every_plan(layers: int, machines: int) -> Iterator[Stages]:
    """Yield every way to cut so many layers into stages that use exactly so many machines."""
    for count in range(1, min(layers, machines) + 1):
        for stops, ends in product(
            combinations(range(1, layers), count - 1), combinations(range(1, machines), count - 1)
        ):
            cuts, shares = pairwise([0, *stops, layers]), pairwise([0, *ends, machines])
            yield [(a, b, d - c) for (a, b), (c, d) in zip(cuts, shares, strict=True)]


def _error(ours: float, expected: float) -> float:
    return abs(ours - expected) / expected if expected else abs(ours)
