"""Stages dealt out to workers in a loop, as interleaved 1F1B and Megatron-LM have them."""

from collections.abc import Iterator, Sequence
from itertools import combinations, pairwise
from math import comb

import numpy as np
from numpy.typing import NDArray

from pipekit.clusters import Cluster
from pipekit.partition.balance import best_split, require_stages
from pipekit.planning.layer_ranges import (
    Floats,
    Index,
    LayerRanges,
    exact_bytes,
    milliseconds,
    stage_plans,
)
from pipekit.plans import Plan
from pipekit.profiling import Profile
from pipekit.schedules import Schedule, flush
from pipekit.schedules import interleaved as interleaved_1f1b

_FEW = 2_000  # so many splits are all tried
_CHAINS, _STEPS = 128, 500  # splits annealed side by side; steps of each, for every stage
_HOT, _COLD = 1e-1, 1e-4
"""What a step may add to the logarithm of the longest load, at first and at last."""
_POWER = 24  # of the norm of the workers' loads that stands for the longest: others count, too
_EVEN, _OVER = 1e-4, 1e3  # of the stages' squared seconds, and of bytes over the limit


def interleaved(
    profile: Profile,
    cluster: Cluster,
    *,
    chunks: int = 1,
    microbatches: int = 1,
    predictors: int = 0,
    optimizer_states: float = 1,
) -> Plan:
    """Return stages whose busiest worker has the least to do, stage s on worker s modulo workers.

    With one chunk a worker this is the optimum, by dynamic programming; with more, few splits are
    all tried, and of many some are annealed.  Links do not count.  A worker keeps one weight
    version, gradients, the optimizer's state and buffers of all its stages, and the activations
    that 1F1B, interleaved with several chunks, has in flight on each.

    Args:
        profile, cluster, optimizer_states: as for :func:`.plan`.
        chunks: stages a worker.
        microbatches: in a batch.
        predictors: how many layers before the last one stay in one stage, as MTP's have to in
            Megatron-LM.

    Raises:
        ValueError: there are more stages than layers, or no split is found that fits the memory.
    """
    stages = cluster.workers * chunks
    most = max(len(profile) - 2, 0)
    if not 0 <= predictors <= most:
        raise ValueError(
            f"{predictors} predictors do not fit between the first and the last of "
            f"{len(profile)} layers: use 0 to {most}"
        )
    require_stages(stages, len(profile) - max(0, predictors - 1))
    loop = _Loop(profile, cluster, stages, microbatches, predictors, optimizer_states)
    balance = loop.best()
    seconds, memory = loop.loads(balance), loop.peaks(balance)
    if not memory.max() <= cluster.device.memory_bytes:
        raise ValueError(
            f"no split was found that fits the {exact_bytes(cluster.device.memory_bytes)} of a "
            f"worker: give each {exact_bytes(memory.max())}, which the most even one needs, use "
            f"more workers, or fewer microbatches"
        )
    worker, each = int(seconds.argmax()), loop.seconds[_ends(balance)]
    return Plan(
        method="interleaved",
        stages=stage_plans(balance, each, memory[np.arange(stages) % cluster.workers]),
        microbatch_rows=profile.rows,
        microbatches=microbatches,
        in_flight=int(loop.held[0].sum(axis=1).max()),
        predicted_s=float(seconds.max()),
        why=f"Worker {worker} has the most to do ({milliseconds(seconds.max())}); no split takes "
        f"less than {milliseconds(loop.bound)}.",
    )


class _Loop:
    """Splits into stages that are dealt out in a loop.

    ``seconds`` are those of a stage by its cuts, ``[first, stop]``; ``held`` for each worker the
    microbatches in flight of its stages before each of its passes, ``[pass, chunk]``; no split goes
    below ``bound`` seconds of the busiest worker.
    """

    def __init__(
        self,
        profile: Profile,
        cluster: Cluster,
        stages: int,
        microbatches: int,
        predictors: int,
        optimizer_states: float,
    ) -> None:
        self._workers, self._stages = cluster.workers, stages
        self._limit = cluster.device.memory_bytes
        ranges = LayerRanges(profile)
        first, stop = ranges.every()
        sums = ranges.total("forward_s", first, stop) + ranges.total("backward_s", first, stop)
        self.seconds = np.where(ranges.possible, sums, np.inf)
        self.seconds[:, ranges.layers - predictors : ranges.layers - 1] = np.inf
        tensors = 1 + optimizer_states
        parts = [ranges.worker_bytes(first, stop, tensors, in_flight) for in_flight in (0, 1)]
        self._constant, self._each = parts[0], parts[1] - parts[0]
        if stages == self._workers:
            table = flush(stages, microbatches)
        else:
            table = interleaved_1f1b(stages, microbatches, workers=self._workers)
        self.held = [*_held(table.take(1), stages // self._workers)]
        # Of each stage, when its worker has the most microbatches in flight.
        most = [counts[counts.sum(axis=1).argmax()] for counts in self.held]
        self._fullest = np.stack(most, axis=1).ravel()
        self.bound = max(float(sums[0, -1]) / self._workers, float(np.diag(sums, 1).max()))

    def best(self) -> list[int]:
        even = best_split(self.seconds, self._stages, np.maximum)
        if self._stages == self._workers:
            counts = self._fullest[:, None, None]
            fits = self._constant + counts * self._each <= self._limit
            split = best_split(np.where(fits, self.seconds, np.inf), self._stages, np.maximum)
            return split if min(split) else even  # it has empty stages if nothing fits
        layers = len(self.seconds) - 1
        if comb(layers - 1, self._stages - 1) <= _FEW:
            cuts = combinations(range(1, layers), self._stages - 1)
            every = ([b - a for a, b in pairwise((0, *each, layers))] for each in cuts)
            return min(every, key=self._cost)
        return min([even, *self._annealed(even)], key=self._cost)

    def _annealed(self, balance: list[int]) -> list[list[int]]:
        """Return splits that annealing made of one (Kirkpatrick et al., Science 1983).

        A step moves the cuts of some stages that follow one another by a layer.
        """
        chance, stages = np.random.default_rng(0), np.arange(self._stages + 1)
        cuts = np.tile(np.cumsum([0, *balance]), (_CHAINS, 1))
        costs = self._smooth(cuts)
        for heat in np.geomspace(_HOT, _COLD, _STEPS * self._stages):
            first, more = chance.integers(1, self._stages, (2, _CHAINS, 1))
            last = np.where(chance.random((_CHAINS, 1)) < 0.4, first, first + more)
            moved = (first <= stages) & (stages <= last) & (stages < self._stages)
            tried = cuts + chance.choice((-1, 1), (_CHAINS, 1)) * moved
            found = self._smooth(tried)
            better = found - costs <= heat * chance.exponential(size=_CHAINS)
            cuts[better], costs[better] = tried[better], found[better]
        return [[*each] for each in np.unique(np.diff(cuts), axis=0).tolist()]

    def _smooth(self, cuts: NDArray[np.int64]) -> Floats:
        """Return how bad splits are, ``[splits, stages + 1]``, as a number for each."""
        part = cuts[:, :-1], cuts[:, 1:]
        seconds = self.seconds[part] / self.bound
        size = self._constant[part] + self._fullest * self._each[part]
        loads, held = (x.reshape(len(cuts), -1, self._workers).sum(1) for x in (seconds, size))
        over = np.maximum(held / self._limit - 1, 0).sum(axis=1)
        longest = np.log((loads**_POWER).sum(axis=1)) / _POWER
        return np.asarray(longest + _OVER * over + _EVEN * (seconds**2).sum(axis=1))

    def loads(self, balance: Sequence[int]) -> Floats:
        """Return the seconds of each worker's stages."""
        return np.asarray(self.seconds[_ends(balance)].reshape(-1, self._workers).sum(axis=0))

    def peaks(self, balance: Sequence[int]) -> Floats:
        """Return the most bytes of each worker."""
        parts = self._constant[_ends(balance)], self._each[_ends(balance)]
        constant, each = (part.reshape(-1, self._workers) for part in parts)
        most = [(counts @ own).max() for counts, own in zip(self.held, each.T, strict=True)]
        return np.asarray(constant.sum(axis=0) + most)

    def _cost(self, balance: Sequence[int]) -> tuple[float, float, float]:
        """Return the share of bytes over the limit, seconds of the busiest worker, unevenness."""
        excess = max(0.0, float(self.peaks(balance).max()) / self._limit - 1)
        uneven = (self.seconds[_ends(balance)] ** 2).sum()
        return excess, float(self.loads(balance).max()), float(uneven)


def _ends(balance: Sequence[int]) -> tuple[Index, Index]:
    """Return the first layer of each stage, and the layer after its last."""
    stops = np.cumsum(balance)
    return stops - balance, stops


def _held(schedule: Schedule, chunks: int) -> Iterator[NDArray[np.int64]]:
    """Yield what each worker has in flight before its passes, ``[pass, chunk]``."""
    for tasks in schedule.workers:
        chunk = [task.stage // len(schedule.workers) for task in tasks]
        changes = np.zeros((len(tasks) + 1, chunks), np.int64)
        changes[range(1, len(tasks) + 1), chunk] = [task.op.in_flight for task in tasks]
        yield changes.cumsum(axis=0)
