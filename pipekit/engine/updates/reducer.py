"""Wait-free gradient sums over the workers of a stage (PipeDream, section 2.1).

A bucket's sum starts as soon as the last backward of an update has computed its gradients, in a
thread beside the worker, while the backward goes on.
"""

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from queue import SimpleQueue
from typing import TypeVar

import torch

from pipekit.devices import (
    keep_for_current_stream,
    new_stream,
    on_stream,
    record_event,
    synchronize,
    wait_event,
)
from pipekit.engine.transport import FlatBucket
from pipekit.engine.updates.all_reduce import AllReduce, ReduceKey
from pipekit.engine.updates.weight_versions import WeightVersions
from pipekit.engine.updates.weights import Bucket, Gradients
from pipekit.host.operator_threads import share_cores
from pipekit.schedules.lowering.recurring import Recurring
from pipekit.schedules.lowering.sums import Sum

Result = TypeVar("Result")
_Work = tuple[Callable[[], object], "Future[object]"]


class CommThread:
    """Runs functions in turn, in a thread for which no program waits: its peer may be gone."""

    def __init__(self, name: str, device: torch.device, workers: int) -> None:
        self._device, self._workers = device, workers
        self._work: SimpleQueue[_Work | None] = SimpleQueue()
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def submit(self, function: Callable[[], Result]) -> "Future[Result]":
        """Do this after all that was submitted before."""
        future: Future[Result] = Future()
        self._work.put((function, future))  # type: ignore[arg-type]  # a future is invariant
        return future

    def close(self) -> None:
        self._work.put(None)

    def _run(self) -> None:
        share_cores(self._workers)
        with on_stream(new_stream(self._device)):
            while (work := self._work.get()) is not None:
                _do(*work)
                del work  # while it waits for the next, nobody needs this one's gradients


def _do(function: Callable[[], object], future: "Future[object]") -> None:
    try:
        future.set_result(function())
    except BaseException as error:
        future.set_exception(error)


class SumTurns:
    """Has the sums of a worker's stages made in one order, that of all workers.

    Two that share two stages would wait for ever if each made another sum first.
    """

    def __init__(self, order: Iterable[tuple[int, int]]) -> None:
        self._order = order
        self._submit: Mapping[int, Callable[[int], bool]] = {}
        self._due: Iterator[tuple[int, int]] = iter(())
        self._next: tuple[int, int] | None = None

    def begin(self, submit: Mapping[int, Callable[[int], bool]], first: Mapping[int, int]) -> None:
        """Make the first sums, those that need nothing of this worker."""
        self._submit = submit
        self._due = ((s, u) for s, u in self._order if s in submit and u >= first[s])
        self._next = next(self._due, None) if submit else None
        self.advance()

    def advance(self) -> None:
        """Start all sums whose turn it is, after gradients have come."""
        while self._next:
            stage, update = self._next
            if not self._submit[stage](update):
                return
            self._next = next(self._due, None)

    def end(self) -> None:
        self._next, self._submit = None, {}


class Reducer:
    """Sums the gradients of one stage with its other workers.

    All workers of the stage sum in one order, of updates and of buckets within each.  A sum to
    which this worker has nothing to give is made as soon as it is its turn: others may have to get
    past it before they can send what this worker needs in order to come to its update.
    """

    def __init__(
        self,
        stage: int,
        worker: int,
        weights: WeightVersions,
        sums: Recurring[Sum],
        stops: Recurring[int],
        all_reduce: AllReduce,
        comm_thread: CommThread,
        device: torch.device,
        advance: Callable[[], None],
        first: int = 1,
    ) -> None:
        self._stage, self._worker, self._sums, self._stops = stage, worker, sums, stops
        self._weights, self._all_reduce, self._comm_thread = weights, all_reduce, comm_thread
        self._device, self._advance = device, advance
        self._buckets: list[Bucket] = weights.buckets()
        self._bucket_of = {
            p: b for b, bucket in enumerate(self._buckets) for p in bucket.parameters
        }
        self._computed: set[int] = set()  # updates whose last backward here is done
        self._next = first, 0  # update and bucket to be summed next
        self._current: int | None = None  # the update whose last backward runs
        self._left: list[set[int]] = []  # gradients of each bucket that it has not computed yet
        self._futures: dict[int, list[Future[FlatBucket]]] = {}
        self._bytes: Counter[int] = Counter()  # of this worker's gradients in them
        self._lent: list[FlatBucket] = []  # what the last update's gradients lie in
        self._unwatch = weights.watch(self._computed_one)

    @property
    def bytes(self) -> int:
        """Bytes of gradients that are being summed, or have been and wait for their update."""
        return self._bytes.total()

    def begin(self, update: int) -> None:
        self._current = update
        self._left = [set(bucket.parameters) for bucket in self._buckets]

    def end(self, update: int) -> None:
        """Note that the last backward of an update is done: what it did not reach has no more."""
        self._current = None
        if update >= self._next[0]:
            self._computed.add(update)
            self._advance()

    def gradients(self, update: int) -> Gradients:
        """Return an update's sums of gradients, once they are here, to last until the next call."""
        result = self._weights.gradients(update)  # none; it may forget the update
        contents = [future.result() for future in self._futures.pop(update, [])]
        del self._bytes[update]
        # All workers have finished the last update's sums now, and read what they were sent of it.
        for bucket, content in zip(self._buckets, self._lent, strict=False):
            bucket.release(content)
        self._lent = contents
        for bucket, content in zip(self._buckets, contents, strict=True):
            keep_for_current_stream(content.numbers)
            for number, gradient in bucket.gradients(content):
                result[number] = gradient
        return result

    def close(self) -> None:
        self._unwatch()

    def _computed_one(self, parameter: int) -> None:
        if self._current is None:
            return
        left = self._left[self._bucket_of[parameter]]
        if parameter not in left:
            raise ValueError(
                "a backward adds to a weight's gradient several times, so that nobody knows when "
                "the workers of a stage may sum it: in torch.utils.checkpoint say "
                "use_reentrant=False, or use recompute='always'"
            )
        left.remove(parameter)
        self._advance()

    def submit(self, update: int) -> bool:
        """Start the sums of the next update whose gradients are there; return whether all are."""
        contributes = self._worker in self._sums[update - 1].contributors
        for place in range(self._next[1], len(self._buckets)):
            computed = update in self._computed or (
                update == self._current and not self._left[place]
            )
            if contributes and not computed:
                return False
            self._submit(update, place, contributes)
            self._next = update, place + 1
        self._computed.discard(update)
        self._next = update + 1, 0
        return True

    def _submit(self, update: int, place: int, contributes: bool) -> None:
        bucket = self._buckets[place]
        # Taken here: only the worker knows which update a gradient belongs to.
        given = [bucket.take(update) if contributes else None]
        self._bytes[update] += sum(g.nbytes for g in given[0] or () if g is not None)
        key = ReduceKey(
            self._stage,
            (update - 1) * len(self._buckets) + place,
            self._sums[update - 1].contributors,
            self._stops[update - 1] - 1,
        )
        ready = record_event(self._device)

        def sum_up() -> FlatBucket:
            # Out of the list, so that they end in this thread, which has seen the end of their sum.
            taken = given.pop()
            wait_event(self._device, ready)
            content = self._all_reduce.sum(key, bucket.flat(taken))
            synchronize(self._device)
            return content

        self._futures.setdefault(update, []).append(self._comm_thread.submit(sum_up))
