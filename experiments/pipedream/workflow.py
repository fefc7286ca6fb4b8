"""Planning problems, by PipeDream's own equations and by brute force (section 3.2)."""

import math
import random
from collections.abc import Iterator, Sequence
from itertools import combinations, pairwise, product
from typing import NamedTuple

from pipekit.clusters import Level, flat
from pipekit.planning import pipedream
from pipekit.planning.bottleneck import BottleneckProgram
from pipekit.planning.layer_ranges import LayerRanges
from pipekit.planning.objectives import Bytes, Seconds
from pipekit.plans import Plan
from pipekit.profiling import LayerProfile, Profile

EQUAL = 1e-12
"""The largest relative error of numbers that are added up in another order."""

Stages = Sequence[tuple[int, int, int]]
"""(first layer, layer after the last, workers) of each stage."""


class Problem(NamedTuple):
    """One planning problem: layers, machines, and bytes/s of each machine's link."""

    profile: Profile
    machines: int
    bandwidth: float

    @property
    def layers(self) -> int:
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
            for stages in every_plan(self.layers, machines)
        )

    def base_cases_hold(self) -> bool:
        """Return whether the planner's answers are A(i, 1) = T(1->i, 1) and A(1, m) = T(1->1, m).

        One layer may leave machines idle: the second is compared with the best T(1->1, m'), m' <=
        m.
        """

        def planned(layers: int, machines: int) -> float:
            profile = Profile(self.profile.layers[:layers])
            return self._replace(profile=profile, machines=machines).plan().predicted_s

        each = range(1, self.machines + 1)
        alone = [(planned(i, 1), self.stage_s(0, i, 1)) for i in range(1, self.layers + 1)]
        one_layer = [(planned(1, m), min(self.stage_s(0, 1, n) for n in each[:m])) for m in each]
        return all(relative_error(*pair) <= EQUAL for pair in alone + one_layer)


def random_problem(generator: random.Random, layers: int = 8, machines: int = 6) -> Problem:
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
    return Problem(Profile(made), generator.randint(1, machines), bandwidth)


def every_plan(layers: int, machines: int) -> Iterator[Stages]:
    """Yield every way to cut so many layers into stages that use exactly so many machines."""
    for count in range(1, min(layers, machines) + 1):
        for stops, shares in product(
            combinations(range(1, layers), count - 1), combinations(range(1, machines), count - 1)
        ):
            cuts, given = pairwise([0, *stops, layers]), pairwise([0, *shares, machines])
            yield [(a, b, d - c) for (a, b), (c, d) in zip(cuts, given, strict=True)]


def relative_error(ours: float, expected: float) -> float:
    """Return |ours - expected| as a part of what is expected."""
    return abs(ours - expected) / expected if expected else abs(ours)


def candidates(layers: int, widths: Sequence[int]) -> int:
    """Return how many candidates the planner's dynamic program looks at, for layers all alike.

    A candidate is a first stage, its machines, and a place where the rest begins; ``widths`` are
    members of each level of links, innermost first.
    """
    profile = Profile.uniform(layers, 1.0, 2.0, output_bytes=1.0, parameter_bytes=1.0)
    levels = [Level(f"level {n}", width, 10.0) for n, width in enumerate(widths)]
    spans = LayerRanges(profile)
    seconds = Seconds(spans, levels, "paper", Bytes(spans, 0), math.inf)
    program = BottleneckProgram(seconds, layers, widths)
    program.plan()
    return program.candidates
