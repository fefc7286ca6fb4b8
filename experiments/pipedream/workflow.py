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

Stages = Sequence[tuple[int, int, int]]
"""(first layer, layer after the last, workers) of each stage."""


class Problem(NamedTuple):
    """One planning problem: layers, machines, and bytes/s of each machine's link."""

    profile: Profile
    machines: int
    bandwidth: float

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

    def brute_force(self) -> float:
        """Return the least time of the slowest stage or transfer over every possible plan."""
        stage_s = {
            (first, stop, m): self.stage_s(first, stop, m)
            for first, stop in combinations(range(len(self.profile) + 1), 2)
            for m in range(1, self.machines + 1)
        }
        return min(
            max(
                *(stage_s[stage] for stage in stages),
                *(self.transfer_s(stop - 1) for _, stop, _ in stages[:-1]),
                0.0,
            )
            for machines in range(1, self.machines + 1)
            for stages in every_plan(len(self.profile), machines)
        )


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


def candidates(layers: int, widths: Sequence[int]) -> int:
    """Return how many candidates the planner's dynamic program looks at, for layers all alike."""
    profile = Profile.uniform(layers, 1.0, 2.0, output_bytes=1.0, parameter_bytes=1.0)
    levels = [Level(f"level {n}", width, 10.0) for n, width in enumerate(widths)]
    spans = LayerRanges(profile)
    seconds = Seconds(spans, levels, "paper", Bytes(spans, 0), math.inf)
    program = BottleneckProgram(seconds, layers, widths)
    program.plan()
    return program.candidates
