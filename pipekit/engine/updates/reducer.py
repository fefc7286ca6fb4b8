"""Wait-free gradient sums over the workers of a stage (PipeDream, section 2.1).

A bucket's sum starts as soon as the last backward of an update has computed its gradients, in a
thread beside the worker, while the backward goes on.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import NamedTuple

import torch

from pipekit.devices import (
    keep_for_current_stream,
    record_event,
    synchronize,
    wait_event,
)
from pipekit.engine.comm_thread import CommThread
from pipekit.engine.transport import FlatBucket
from pipekit.engine.updates.all_reduce import AllReduce, ReduceKey
from pipekit.engine.updates.weight_versions import WeightVersions
from pipekit.engine.updates.weights import Gradients, require_dense
from pipekit.schedules import Step
from pipekit.schedules.lowering.recurring import Recurring
from pipekit.schedules.lowering.sums import Sum, Turn


class SharedStage(NamedTuple):
    """A stage that other workers have, too."""

    weights: WeightVersions
    sums: Recurring[Sum]  # of each update
    all_reduce: AllReduce


class Reducer:
    """Sums the gradients of a worker's stages with the other workers of each.

    All workers make their sums in one ``order``, of stages and updates, bucket by bucket: two that
    share two stages would wait for ever if each made another sum first.  A sum to which this worker
    has nothing to give is made as soon as it is its turn: others may have to get past it before
    they can send what this worker needs in order to come to its update.
    """

    def __init__(
        self,
        worker: int,
        stages: Mapping[int, SharedStage],
        order: Iterable[Turn],
        comm_thread: CommThread,
        device: torch.device,
    ) -> None:
        self._worker, self._stages, self._device = worker, stages, device
        self._comm_thread = comm_thread
        buckets = {number: stage.weights.buckets() for number, stage in stages.items()}
        self._buckets = buckets
        turns = ((s, u) for s, u in order if s in buckets)
        self._turns = ((s, u, place) for s, u in turns for place in range(len(buckets[s])))
        self._turn = next(self._turns, None)  # the stage, update and bucket to be summed next
        self._current: Turn | None = None  # the stage and update whose last backward runs
        # Of each update whose last backward has begun: what each bucket still waits for.
        self._left: dict[Turn, list[set[int]]] = {}
        self._futures: defaultdict[Turn, list[Future[FlatBucket]]] = defaultdict(list)
        self._bytes: Counter[Turn] = Counter()  # of this worker's gradients in them
        self._unwatch = [
            stage.weights.watch(partial(self._computed, number)) for number, stage in stages.items()
        ]
        self._advance()

    def __contains__(self, stage: object) -> bool:
        return stage in self._stages

    @property
    def bytes(self) -> int:
        """Bytes of gradients that are being summed, or have been and wait for their update."""
        return self._bytes.total()

    @contextmanager
    def last_backward(self, stage: int, update: int) -> Iterator[None]:
        """Sum what the last backward of an update computes within the block, while it goes on."""
        self._current = stage, update
        self._left[self._current] = [set(bucket.parameters) for bucket in self._buckets[stage]]
        try:
            yield
        finally:  # the run may end before it, and go on with earlier ones
            self._current = None
        for missing in self._left.get((stage, update), ()):
            missing.clear()  # what the backward did not reach has no more
        self._advance()

    def gradients(self, stage: int, update: int) -> Gradients:
        """Return an update's sums of gradients, once they are here, to last until the next call."""
        result = self._stages[stage].weights.gradients(update)  # none; it may forget the update
        contents = [future.result() for future in self._futures.pop((stage, update), [])]
        del self._bytes[stage, update]
        for bucket, content in zip(self._buckets[stage], contents, strict=True):
            keep_for_current_stream(content.numbers)
            for number, gradient in bucket.lend(content):
                result[number] = gradient
        return result

    def close(self) -> None:
        for unwatch in self._unwatch:
            unwatch()

    def _computed(self, stage: int, parameter: int) -> None:
        if self._current is None or self._current[0] != stage:
            return
        for left in self._left.get(self._current, ()):
            if parameter in left:
                left.remove(parameter)
                self._advance()
                return
        raise ValueError(
            "a backward adds to a weight's gradient several times, so that it is unknown when "
            "the workers of a stage may sum it: in torch.utils.checkpoint say "
            "use_reentrant=False, or use recompute='always'"
        )

    def _advance(self) -> None:
        """Start all sums whose turn it is, as far as their gradients are there."""
        while self._turn:
            stage, update, place = self._turn
            contributes = self._worker in self._stages[stage].sums[update - 1].contributors
            left = self._left.get((stage, update))
            if contributes and (left is None or left[place]):
                return
            self._start(stage, update, place, contributes)
            if place == len(self._buckets[stage]) - 1:
                self._left.pop((stage, update), None)
            self._turn = next(self._turns, None)

    def _start(self, stage: int, update: int, place: int, contributes: bool) -> None:
        weights, sums, all_reduce = self._stages[stage]
        bucket, count = self._buckets[stage][place], len(self._buckets[stage])
        # Taken here: only the worker knows which update a gradient belongs to.  Kept nowhere but in
        # this list: they must end in the other thread, which sees the end of their sum.
        given = [require_dense(weights.take(update, bucket.parameters)) if contributes else None]
        self._bytes[stage, update] += sum(g.nbytes for g in given[0] or () if g is not None)
        number = (update - 1) * count + place
        contributors, _, end = sums[update - 1]
        key = ReduceKey(stage, number, contributors, end - 1)
        ready = record_event(self._device)

        def sum_up() -> FlatBucket:
            content = given.pop()
            wait_event(self._device, ready)
            summed = all_reduce.sum(key, bucket.flat(content))
            synchronize(self._device)
            return summed

        self._futures[stage, update].append(self._comm_thread.submit(sum_up))


def summing(execute: Callable[[Step], None], reducer: Reducer) -> Callable[[Step], None]:
    """Return what executes a step, and begins the sums for which its backward is the last."""

    def run(step: Step) -> None:
        stage = step.task.stage
        last = step.ends_update and stage in reducer
        with reducer.last_backward(stage, step.update) if last else nullcontext():
            execute(step)

    return run
