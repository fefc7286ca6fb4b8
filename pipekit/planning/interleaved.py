"""Stages dealt out to workers in a loop, as interleaved 1F1B and Megatron-LM have them."""

from collections.abc import Iterator

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

Ints = NDArray[np.int64]
_KEPT, _TRIED = 50_000, 200_000
"""So many states are kept before each worker, and for each stage of one."""
_CLOSE, _WIDER = 1e-3, 1.5
"""How close to the least time the search ends, and how its steps upwards grow."""


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

    With one chunk a worker this is the optimum, by dynamic programming; with more, it is within
    0.1 % of it, unless a search in breadth has to drop states.  Links do not count.  A worker keeps
    one weight version, gradients, the optimizer's state and buffers of all its stages, and the
    activations that 1F1B, interleaved with several chunks, has in flight on each.

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
    cuts = loop.best()
    seconds, memory = loop.loads(cuts), loop.peaks(cuts)
    if not memory.max() <= cluster.device.memory_bytes:
        raise ValueError(
            f"no split was found that fits the {exact_bytes(cluster.device.memory_bytes)} of a "
            f"worker: give each {exact_bytes(memory.max())}, which the nearest one needs, use "
            f"more workers, or fewer microbatches"
        )
    worker, each = int(seconds.argmax()), loop.seconds[cuts[:-1], cuts[1:]]
    return Plan(
        method="interleaved",
        stages=stage_plans([*np.diff(cuts)], each, memory[np.arange(stages) % cluster.workers]),
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
    microbatches in flight of its stages when most are, ``[time, chunk]``; no split goes below
    ``bound`` seconds of the busiest worker.
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
        self._chunks = stages // cluster.workers
        self._limit = cluster.device.memory_bytes
        ranges = LayerRanges(profile)
        first, stop = ranges.every()
        sums = ranges.total("forward_s", first, stop) + ranges.total("backward_s", first, stop)
        self._layers, self._until = ranges.layers, sums[0]  # seconds before each cut
        self.seconds = np.where(ranges.possible, sums, np.inf)
        self.seconds[:, ranges.layers - predictors : ranges.layers - 1] = np.inf
        tensors = 1 + optimizer_states
        parts = [ranges.worker_bytes(first, stop, tensors, in_flight) for in_flight in (0, 1)]
        self._constant, self._each = parts[0], parts[1] - parts[0]
        if stages == self._workers:
            table = flush(stages, microbatches)
        else:
            table = interleaved_1f1b(stages, microbatches, workers=self._workers)
        self.held = [*_held(table.take(1), self._chunks)]
        # The numbers of the cuts before each worker, and behind the last: ``[worker, chunk]``.
        self._dealt = np.add.outer(np.arange(self._workers + 1), range(0, stages, self._workers))
        self.bound = max(float(self._until[-1]) / self._workers, float(np.diag(sums, 1).max()))

    def best(self) -> Ints:
        """Return the cuts of the split, with the first and the last."""
        near = self._even(self.seconds)
        held = np.stack([own.max(axis=0) for own in self.held], axis=1).reshape(-1, 1, 1)
        kept = self._constant + held * self._each  # of each stage at its own peak
        if self._chunks == 1:
            split = self._even(np.where(kept > self._limit, np.inf, self.seconds))
            return split if len({*split}) > self._stages else near  # empty stages: nothing fits
        fits = self.peaks(near).max() <= self._limit
        if not fits:  # the search begins near stages that share bytes, not seconds
            near = self._even(np.where(np.isfinite(self.seconds), kept, np.inf))
        self._near = self._until[near[self._dealt]]
        best = near if fits else self._within(float(self._until[-1]))
        if best is None:
            return near
        low, high, step = self.bound, float(self.loads(best).max()), _CLOSE
        while high > low * (1 + _CLOSE):
            longest = min(low * (1 + step), (low + high) / 2)
            found = self._within(longest)
            if found is None:
                low, step = longest, step * _WIDER
            else:
                high, best = float(self.loads(found).max()), found
                self._near = self._until[best[self._dealt]]
        return best

    def _even(self, costs: Floats) -> Ints:
        """Return the cuts whose costliest stage costs least."""
        return np.cumsum([0, *best_split(costs, self._stages, np.maximum)])

    def _within(self, longest: float) -> Ints | None:
        """Return the most even split found that fits and keeps no worker busy for longer.

        A search in breadth: the cuts before worker w + 1, one in each chunk, follow from those
        before worker w.  A worker's stages do not depend on what others hold, so of all ways to
        the same cuts (and starts of chunks) one is enough.
        """
        path = self._starts()[:, None]
        strayed = np.zeros(len(path))
        for _ in range(self._workers):
            row, cuts, strayed = self._next_cuts(path, strayed, longest)
            state = np.hstack([path[row, 0], cuts]).astype(np.uint16)
            order = np.lexsort((strayed, *state.T))
            differs = (np.diff(state[order], axis=0) != 0).any(axis=1)
            best = order[np.append(True, differs)[: len(order)]]
            keep = best[_least(strayed[best], _KEPT)]
            path = np.concatenate([path[row[keep]], cuts[keep, None]], axis=1)
            strayed = strayed[keep]
        if not len(path):
            return None
        uneven = (np.diff(self._until[path], axis=1) ** 2).sum(axis=(1, 2))
        return np.append(path[uneven.argmin(), :-1].T.ravel(), self._layers)

    def _starts(self) -> Ints:
        """Return where chunks may start, ``[splits, chunks]``, the nearest of many."""
        starts, strayed = np.zeros((1, 1), np.int64), np.zeros(1)
        for chunk in range(1, self._chunks):
            last = np.full(len(starts), self._layers - (self._chunks - chunk) * self._workers)
            row, start = _all_of(starts[:, -1] + self._workers, last)
            strayed = strayed[row] + (self._until[start] - self._near[0, chunk]) ** 2
            keep = _least(strayed, _KEPT)
            starts, strayed = np.column_stack([starts[row], start])[keep], strayed[keep]
        return starts

    def _next_cuts(self, path: Ints, strayed: Floats, longest: float) -> tuple[Ints, Ints, Floats]:
        """Return every way on by one worker: its row of ``path``, the cuts, how far they strayed.

        ``path`` are the cuts before each worker so far, ``[splits, workers, chunks]``; ``strayed``
        sums the squared seconds between them and cuts that share each chunk as ``_near`` does.
        """
        worker, until = path.shape[1] - 1, self._until
        left = self._workers - 1 - worker
        first, cut = path[:, 0], path[:, -1]
        stops = np.append(first[:, 1:], np.full((len(path), 1), self._layers), axis=1)
        near = self._near - self._near[0]
        share = near[worker + 1] / np.maximum(near[-1], np.finfo(float).tiny)
        even = until[first] + (until[stops] - until[first]) * share
        # The later workers cannot take more than so long each, the later chunks not less.
        least_load = until[-1] - left * longest - (until[cut] - until[first]).sum(axis=1)
        shortest = until[cut + (cut < stops)] - until[cut]
        later = shortest.sum(axis=1)[:, None] - shortest.cumsum(axis=1)
        row, load = np.arange(len(path)), np.zeros(len(path))
        cuts = np.empty((len(path), 0), np.int64)
        for chunk in range(self._chunks):
            start, stop = cut[row, chunk], stops[row, chunk] - left
            zero = until[start] - load
            low = start + 1 if left else stop
            if left and chunk == self._chunks - 1:
                low = np.maximum(low, np.searchsorted(until, zero + least_load[row]))
            high = np.searchsorted(until, zero + longest - later[row, chunk], "right") - 1
            of, new = _all_of(low, np.minimum(stop, high))
            of, new = (x[self.seconds[start[of], new] < np.inf] for x in (of, new))
            away = strayed[of] + (until[new] - even[row[of], chunk]) ** 2
            keep = _least(away, _TRIED)
            of, new, strayed = of[keep], new[keep], away[keep]
            row, load, cuts = row[of], until[new] - zero[of], np.column_stack([cuts[of], new])
        fits = self._peak(worker, cut[row], cuts) <= self._limit
        return row[fits], cuts[fits], strayed[fits]

    def loads(self, cuts: Ints) -> Floats:
        """Return the seconds of each worker's stages, ``[..., worker]``."""
        return np.asarray(np.diff(self._until[cuts[..., self._dealt]], axis=-2).sum(axis=-1))

    def peaks(self, cuts: Ints) -> Floats:
        """Return the most bytes of each worker, ``[..., worker]``."""
        ends = cuts[..., self._dealt]
        peaks = [self._peak(w, ends[..., w, :], ends[..., w + 1, :]) for w in range(self._workers)]
        return np.stack(peaks, axis=-1)

    def _peak(self, worker: int, first: Index, stop: Index) -> Floats:
        """Return the most bytes of a worker by the ends of its stages, ``[..., chunk]``."""
        held = self.held[worker] @ self._each[first, stop].T
        return np.asarray(self._constant[first, stop].sum(axis=-1) + held.max(axis=0))


def _all_of(low: Ints, high: Ints) -> tuple[Ints, Ints]:
    """Return which pair each whole number from ``low`` to ``high`` is of, and the number."""
    count = np.maximum(high - low + 1, 0)
    pair = np.repeat(np.arange(len(count)), count)
    return pair, low[pair] + np.arange(len(pair)) - (count.cumsum() - count)[pair]


def _least(values: Floats, count: int) -> Ints:
    """Return where the least values are, so many at most: of equal ones the first."""
    if len(values) <= count:
        return np.arange(len(values))
    return np.flatnonzero(values <= np.partition(values, count)[count])[:count]


def _held(schedule: Schedule, chunks: int) -> Iterator[Ints]:
    """Yield what each worker has in flight when most is, ``[time, chunk]``."""
    for tasks in schedule.workers:
        chunk = [task.stage // len(schedule.workers) for task in tasks]
        changes = np.zeros((len(tasks) + 1, chunks), np.int64)
        changes[range(1, len(tasks) + 1), chunk] = [task.op.in_flight for task in tasks]
        counts = np.unique(changes.cumsum(axis=0), axis=0)
        larger = (counts[:, None] <= counts).all(axis=2)  # or itself
        yield counts[larger.sum(axis=1) == 1]
