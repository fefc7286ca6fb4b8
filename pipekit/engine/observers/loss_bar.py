"""How far a run is, as its program sees it: a bar with the loss, and calls of the user's."""

import time
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import NamedTuple

from pipekit.engine.observers.reporter import LossKnown, UpdateMade
from pipekit.progress import progress_bar


class BatchDone(NamedTuple):
    """A batch whose loss is known, and whose update the last stage has made.

    Attributes:
        number: of the batch in this ``train`` call, from 0.
        loss: averaged over its rows.
        seconds: since the call began to run.
        rows: that it has.
        learning_rates: those of the update, one for each group of the last stage's optimizer.
        gradient_norm: 2-norm of the update's gradient over all stages, before it is clipped; None
            without ``clip_norm`` (``math.inf`` clips nothing), or if the update is skipped.
        rows_per_s: rows of this batch and of those told of before it, a second of ``seconds``.
        held_bytes: by a worker of the last stage after the update; None without ``memory=True``.
    """

    number: int
    loss: float
    seconds: float
    rows: int
    learning_rates: tuple[float, ...]
    gradient_norm: float | None
    rows_per_s: float
    held_bytes: int | None


OnBatch = Callable[[BatchDone], object]
"""Is told of a batch; True stops the run."""


_TOLD = -1
"""In place of the microbatches of a batch whose losses are still to come."""


class LossBar:
    """Counts batches as their last microbatch's loss comes in, and tells of them once updated.

    Args:
        sizes: how many microbatches each batch has, maybe without end.
        total: how many batches there are, or None.
        shown: False to show nothing.
        on_batch: called with each batch, or None.
        done: batches that count already.
        rows: of each batch, of those that have been read from these on.
        stop: called when ``on_batch`` returns True, or with what it has raised.
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
        stop: Callable[[Exception | None], None] = lambda error: None,
        begin: int = 0,
    ) -> None:
        self._on_batch, self._begin = on_batch, time.perf_counter()
        self._rows, self._stop = rows, stop
        self._sizes, self._first = iter(sizes), begin
        self._batch_of: list[int] = []  # of each microbatch, as far as losses have come
        self._left: list[int] = []
        self._totals: list[float] = []
        self._rows_told = 0
        self._updates: dict[int, UpdateMade] = {}  # of each batch, until its loss is known as well
        # One that is not shown takes tqdm a quarter of a millisecond.
        self._bar = progress_bar(total=total, initial=done, unit="batch") if shown else None

    def add(self, news: LossKnown | UpdateMade) -> None:
        """Count a microbatch's part of its batch's loss, or the batches of an update."""
        if isinstance(news, UpdateMade):
            self._updates.update(dict.fromkeys(news.batches, news))
            for batch in news.batches:
                self._tell(batch)
        else:
            self._count(*news)

    def _count(self, microbatch: int, loss: float) -> None:
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
            if self._bar is not None:
                self._bar.set_postfix(loss=f"{self._totals[batch]:.4f}", refresh=False)
                self._bar.update()
            self._tell(batch)

    def _tell(self, batch: int) -> None:
        """Tell once of a batch whose loss and update are both known."""
        if batch not in self._updates or batch >= len(self._left) or self._left[batch] > 0:
            return
        update, is_told = self._updates.pop(batch), self._left[batch] == _TOLD
        self._left[batch] = _TOLD
        if self._on_batch and not is_told:  # each worker of the last stage tells of its updates
            seconds = time.perf_counter() - self._begin
            rows = self._rows[batch]
            self._rows_told += rows
            of_update = update.learning_rates, update.gradient_norm
            so_far = self._rows_told / seconds, update.held_bytes
            done = BatchDone(batch, self._totals[batch], seconds, rows, *of_update, *so_far)
            try:
                if self._on_batch(done) is True:
                    self._stop(None)
            except Exception as error:  # the weights are to stay whole
                self._on_batch = None
                self._stop(error)

    def __enter__(self) -> "LossBar":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.close()
