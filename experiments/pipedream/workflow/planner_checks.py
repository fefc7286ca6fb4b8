"""PipeDream's planner (section 3.2), held against its own equations and brute force."""

import math
import random
from collections.abc import Iterator, Sequence
from itertools import combinations, pairwise, product
from typing import NamedTuple

import pandas as pd
import plotly.graph_objects as go

from experiments.recorded.findings import Finding
from pipekit import plots
from pipekit.clusters import flat
from pipekit.planning import pipedream
from pipekit.plans import Plan
from pipekit.profiling import LayerProfile, Profile

EQUAL = 1e-12
"""The largest relative error of numbers that are added up in another order."""

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
        _error(problem.plan().predicted_s, expected) <= EQUAL
        for problem, expected in [*one_machine, *one_layer]
    )


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


def optimum_figure(plans: pd.DataFrame) -> go.Figure:
    """Draw the planner's seconds over brute force's; a colour a count of stages."""
    stages = plans["config"].str.count("-").add(1).astype(str) + " stages"
    drawn = plans.assign(stages=stages).sort_values("stages")
    title = f"The planner finds the best of all plans in {len(plans)} random problems"
    axes, label = ("brute force", "planner", "stages"), "seconds a minibatch, exact"
    return plots.points(drawn, *axes, title=title, label=label, diagonal=True)


def findings(plans: pd.DataFrame, problems: Sequence[Instance]) -> list[Finding]:
    """Return whether the planner's answers are the equations' and the best."""
    several = plans["config"].str.contains("-")
    single, several = plans[~several], plans[several]
    largest, printed = (largest_error(plans, column) for column in ("brute force", "recurrence"))
    optimal = [largest, len(plans)]
    stages = float(plans["stage error"].max()) <= EQUAL
    alone = max(single["stage error"].max(), largest_error(single, "recurrence")) <= EQUAL
    joined = largest_error(several, "recurrence") <= EQUAL and printed <= EQUAL
    begins = all(base_cases_hold(problem) for problem in problems[:50])
    every = f"every stage of {len(plans)} plans, relative error at most {EQUAL:g}"
    agree = (
        f"{len(several)} plans of several stages; the recurrence as printed and brute force "
        f"agree with the planner to {max(printed, largest):.1e}"
    )
    idle = (
        "50 problems; A(1, m) is the best on at most m machines, as one layer may leave some idle"
    )
    single_note, noam = f"{len(single)} plans of one stage", bool(plans["NOAM"].all())
    figure = "brute_force.svg"
    return [
        Finding.exact("pipedream-planner-optimal-substructure", optimal, figure=figure),
        Finding.exact("pipedream-eq-stage-time", stages, every),
        Finding.exact("pipedream-eq-planner-single-stage", alone, single_note),
        Finding.exact("pipedream-eq-planner-multi-stage", joined, agree),
        Finding.exact("pipedream-eq-planner-init", begins, idle),
        Finding.exact("pipedream-eq-noam", noam, f"{len(plans)} plans"),
    ]
