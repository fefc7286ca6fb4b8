"""The batches of a run, one after another, as the user's loader makes them."""

from array import array
from collections.abc import Callable, Iterator
from typing import Any

from torch.utils.data import DataLoader, default_collate

from pipekit.engine.batches import Batch, End
from pipekit.engine.config import PossibleStops
from pipekit.engine.entries import copied

Read = Callable[[Any, int, int], Batch]
"""Checks a batch of the user's, given its microbatches and its number."""


def stacks(batches: Any) -> bool:
    """Return whether batches are stacked from rows in new tensors, each time anew."""
    return isinstance(batches, DataLoader) and batches.collate_fn is default_collate


def kept_apart(batches: Any, read: Read) -> Read:
    """Return what reads batches into memory of their own, if the next ones may overwrite them.

    A loader may fill one buffer again and again, while microbatches of several batches are in
    flight.  A list has its batches already, and a ``DataLoader`` stacks rows into new tensors.
    """
    if stacks(batches) or isinstance(batches, (list, tuple)):
        return read
    return lambda batch, parts, number: read(copied(batch), parts, number)


class BatchSource:
    """The batches of a run, which may end before its table.

    Args:
        first: the first batch, which was read and checked.
        rest: the user's other batches.
        each_batch: yields the microbatches of each batch of the schedule, from the first on.
        total: the exact number of batches; None: as many as there are.
        possible_stops: where the run may end with whole updates; errors of the data elsewhere reach
            the worker that reads.
        read: reads one of the others.

    Attributes:
        error: the error of the batch before which the run ends, or the one that stopped it.
        rows: of each batch that was read.
    """

    def __init__(
        self,
        first: Batch,
        rest: Iterator[Any],
        each_batch: Callable[[], Iterator[range]],
        total: int | None,
        possible_stops: PossibleStops,
        read: Read,
    ) -> None:
        self._first, self._rest, self.possible_stops = first, rest, possible_stops
        self.each_batch, self.total = each_batch, total
        self._read = read
        self._stopped = False
        self.error: Exception | None = None
        self.rows = array("q")

    def stop(self, error: Exception | None = None) -> None:
        """Read no more batches: the run ends at the next possible stop."""
        self._stopped, self.error = True, self.error or error

    def __iter__(self) -> Iterator[Batch | End]:
        """Yield the batches, and an :class:`End` where the run ends early.

        Raises:
            ValueError: a batch cannot be read, or there are fewer than their length said, where the
                run may not end.
        """
        for number, microbatches in enumerate(self.each_batch()):
            may_end = microbatches.start in self.possible_stops
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
            self.rows.append(batch.rows // batch.chunks)
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
