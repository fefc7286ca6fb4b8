"""The user's batches, read one by one as the workers come to need them, and where they end."""

from array import array
from collections.abc import Callable, Iterator
from typing import Any

from pipekit.engine.batches import Batch, End
from pipekit.engine.ending import Ends

Read = Callable[[Any, int, int], Batch]
"""Checks a batch of the user's, given its microbatches and its number."""


class BatchSource:
    """The batches of a run; they may end before its table does.

    Args:
        first: the first batch, which is read and checked.
        rest: the user's others.
        each_batch: returns the microbatches of each batch of the schedule, from its first on.
        total: how many batches there have to be; None: as many as there are.
        ends: where the run may end with whole updates.  An error of the data elsewhere is raised
            to whoever reads.
        read: reads one of the others.
        begin: the run's first microbatch in its table.

    Attributes:
        error: what reading a batch has raised, if the run ends before this batch; or that for
            which it was stopped.
        rows: of each batch that was read.
        each_batch: as it was given.
        total: likewise.
        begin: likewise.
    """

    def __init__(
        self,
        first: Batch,
        rest: Iterator[Any],
        each_batch: Callable[[], Iterator[range]],
        total: int | None,
        ends: Ends,
        read: Read,
        begin: int,
    ) -> None:
        self._first, self._rest, self._ends = first, rest, ends
        self.each_batch, self.total, self.begin = each_batch, total, begin
        self._read = read
        self._stopped = False
        self.error: Exception | None = None
        self.rows = array("q")

    @property
    def may_end(self) -> bool:
        """Whether there is any place where the run may end early."""
        return bool(self._ends)

    def stop(self, error: Exception | None = None) -> None:
        """Read no more: the run ends where it may, and the batches on their way are finished."""
        self._stopped, self.error = True, self.error or error

    def __iter__(self) -> Iterator[Batch | End]:
        """Yield the batches, and an :class:`End` where the run ends early.

        Raises:
            ValueError: a batch cannot be read, or there are fewer than the batches' length
                promised, where the run may not end.
        """
        for number, microbatches in enumerate(self.each_batch()):
            may_end = microbatches.start in self._ends
            if number == self.total or (self._stopped and may_end):
                yield End()
                return
            batch = None
            try:
                batch = self._next(number, len(microbatches))
            except Exception as error:
                if not may_end:
                    raise
                self.error = error
            if batch is None:
                yield End()
                return
            self.rows.append(batch.rows)
            yield batch

    def _next(self, number: int, parts: int) -> Batch | None:
        if number == 0:
            return self._first
        try:
            batch = next(self._rest)
        except StopIteration:
            if self.total is None:
                return None
            raise ValueError(
                f"the batches ended after {number}, though their len() is {self.total}"
            ) from None
        return self._read(batch, parts, number)
