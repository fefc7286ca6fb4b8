"""How far a run is, as its program sees it: a bar with the loss, and calls of the user's."""

import time
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import NamedTuple

from tqdm.auto import tqdm


class BatchDone(NamedTuple):
    """A batch whose loss is known.

    Attributes:
        number: of the batch in this ``train`` call, from 0.
        loss: averaged over its rows.
        seconds: since the call began to run.
        rows: that it has.
    """

    number: int
    loss: float
    seconds: float
    rows: int


OnBatch = Callable[[BatchDone], object]
"""Is told of a batch; True stops the run."""


class LossBar:
    """Counts batches as their last microbatch's loss comes in.

    Args:
        sizes: how many microbatches each batch has, maybe without end.
        total: how many batches there are, or None.
        shown: False to show nothing.
        on_batch: called with each batch, or None.
        done: batches that count already.
        rows: of each batch, of those that have been read from these on.
        stop: called when ``on_batch`` returns True.
        begin: the first microbatch.
    """

    def __init__(
        self,
        sizes: Iterable[int],
        total: int | None,
        shown: bool,
        on_batch: OnBatch | None = None,
        done: int = 0,
        rows: Sequence[int] = (),
        stop: Callable[[], None] = lambda: None,
        begin: int = 0,
    ) -> None:
        self._on_batch, self._begin = on_batch, time.perf_counter()
        self._rows, self._stop = rows, stop
        self._sizes, self._first = iter(sizes), begin
        self._batch_of: list[int] = []  # of each microbatch, as far as losses have come
        self._left: list[int] = []
        self._totals: list[float] = []
        self._bar = tqdm(total=total, initial=done, unit="batch", disable=not shown, leave=False)

    def add(self, microbatch: int, loss: float) -> None:
        """Count a microbatch's part of its batch's loss."""
        place = microbatch - self._first
        while len(self._batch_of) <= place:
            size = next(self._sizes)
            self._batch_of += [len(self._left)] * size
            self._left.append(size)
            self._totals.append(0.0)
        batch = self._batch_of[place]
        self._totals[batch] += loss
        self._left[batch] -= 1
        if not self._left[batch]:
            self._bar.set_postfix(loss=f"{self._totals[batch]:.4f}", refresh=False)
            self._bar.update()
            if self._on_batch:
                seconds = time.perf_counter() - self._begin
                done = BatchDone(batch, self._totals[batch], seconds, self._rows[batch])
                if self._on_batch(done) is True:
                    self._stop()

    def __enter__(self) -> "LossBar":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self._bar.close()
