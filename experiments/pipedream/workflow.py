"""PipeDream's profile runs, and planning by its equations and by brute force (section 3.2).

Times are of a process's CPU: the claims are of an idle host, on which these are the clock's.
"""

import math
import multiprocessing
import os
import random
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from itertools import accumulate, combinations, cycle, product
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from experiments.study.tables import splits
from experiments.study.traces import in_turns
from pipekit.clusters import Level, flat
from pipekit.host.memory import keep_freed_memory
from pipekit.planning import pipedream
from pipekit.planning.bottleneck import BottleneckProgram
from pipekit.planning.layer_ranges import LayerRanges
from pipekit.planning.objectives import Bytes, Seconds
from pipekit.plans import Plan
from pipekit.profiling import LayerProfile, Profile
from pipekit.profiling.layer_passes import layer_name

WARM_UP = 5  # minibatches of a profile run that do not count

SAME = "the same product"  # a column of profile runs: what it varies by is the host's
SAME_SIZE = 256  # rows and columns of that product, which takes as long as a layer

Build = Callable[[], nn.Sequential]


def minibatch(model: nn.Sequential, sample: Tensor) -> dict[str, float]:
    """Return the CPU seconds of each layer, forward and backward together, and of :data:`SAME`."""
    always = torch.ones(SAME_SIZE, SAME_SIZE)
    torch.mm(always, always)  # as layers, it finds its operands where they were used before
    start = time.process_time()
    torch.mm(always, always)
    same = time.process_time() - start
    x, seconds = sample, {}
    for number, layer in enumerate(model):
        entered = x.detach().requires_grad_(x.requires_grad)
        start = time.process_time()
        x = layer(entered)
        if x.requires_grad:
            x.backward(torch.ones_like(x))
        seconds[layer_name(layer, number)] = time.process_time() - start
    return seconds | {SAME: same}


def pair_of_runs(
    build: Build, sample: Tensor, minibatches: int
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the profile runs, a row a minibatch, of two processes that take turns on each core."""
    cores, processes = sorted(os.sched_getaffinity(0)), multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, processes) as first, ProcessPoolExecutor(1, processes) as second:
        turns = [
            [each.submit(_own_minibatch, build, sample, core).result() for each in (first, second)]
            for _, core in zip(range(WARM_UP + minibatches), cycle(cores), strict=False)
        ]
    one, other = (pd.DataFrame(rows[WARM_UP:]) for rows in zip(*turns, strict=True))
    return one, other


@cache
def _network(build: Build) -> nn.Sequential:
    """Return this process's network."""
    # As in PipeDream (3.5): else one process may ask the kernel for every larger output anew.
    keep_freed_memory()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    return build()


def _own_minibatch(build: Build, sample: Tensor, core: int) -> dict[str, float]:
    os.sched_setaffinity(0, {core})
    return minibatch(_network(build), sample)


class Problem(NamedTuple):
    """One planning problem: layers, machines, and bytes/s of each machine's link."""

    profile: Profile
    machines: int
    bandwidth: float

    def plan(self) -> Plan:
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


def every_plan(layers: int, machines: int) -> Iterator[list[tuple[int, int, int]]]:
    """Yield every plan on exactly so many machines: of each stage first layer, stop, machines."""
    for count in range(1, min(layers, machines) + 1):
        for sizes, shares in product(splits(layers, count), splits(machines, count)):
            stops = accumulate(sizes)
            yield [(b - n, b, m) for n, b, m in zip(sizes, stops, shares, strict=True)]


def candidates(layers: int, widths: Sequence[int]) -> int:
    """Return how many candidates the planner's dynamic program looks at, for layers all alike."""
    profile = Profile.uniform(layers, 1.0, 2.0, output_bytes=1.0, parameter_bytes=1.0)
    levels = [Level(f"level {n}", width, 10.0) for n, width in enumerate(widths)]
    spans = LayerRanges(profile)
    seconds = Seconds(spans, levels, "paper", Bytes(spans, 0), math.inf)
    program = BottleneckProgram(seconds, layers, widths)
    program.plan()
    return program.candidates


def one_by_one_s(layers: int, workers: int) -> float:
    """Return the CPU seconds of a planner that tries one candidate after another in Python's loops.

    It looks for the best plan of every run of so many layers on every number of workers: O(n^3 m^2)
    candidates (PipeDream-2BW, section 6), each a first stage and its replicas.  Those of the run of
    all layers on all workers are timed, and the rest takes as long each.
    """
    compute, weights, behind = ([float(cut) for cut in range(layers + 1)] for _ in range(3))

    def best_of_all_layers() -> float:
        least = math.inf
        for cut in range(1, layers):
            stage_s, size = compute[layers] - compute[cut], weights[layers] - weights[cut]
            for replicas in range(1, workers):
                sync_s = 4 * (replicas - 1) * size / replicas
                least = min(least, max(behind[cut], max(stage_s, sync_s) / replicas))
        return least

    took = np.median(in_turns([best_of_all_layers], 20))
    candidates = math.comb(layers + 1, 3) * math.comb(workers, 2)
    return float(took) / ((layers - 1) * (workers - 1)) * candidates
