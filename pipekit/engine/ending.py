"""Where a run ends, if that is before the end of its table.

The table is the same to the end, and whatever is left of it is passed over: a run that ends before
a microbatch does everything for those before it and nothing for the others.
"""

import sys
import threading
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

from pipekit.schedules import EndlessSteps, Step


class Ended(Exception):
    """The run ends before the microbatch that is waited for."""


class Ending:
    """Where a run ends, as far as it is known; several workers may hold the same one.

    Attributes:
        microbatch: the first that is no part of the run.
    """

    def __init__(self) -> None:
        self.microbatch = sys.maxsize
        self._lock = threading.Lock()

    def at(self, microbatch: int) -> None:
        """Let the run end before a microbatch, or before an earlier one, if that is known."""
        with self._lock:  # workers may fail at the same time, in different batches
            self.microbatch = min(self.microbatch, microbatch)

    def until(self, steps: Iterable[Step]) -> Iterator[Step]:
        """Yield the steps that are part of the run, as far as it is known when each comes."""
        if isinstance(steps, EndlessSteps):
            return steps.until(lambda: self.microbatch)
        return (step for step in steps if step.task.microbatch < self.microbatch)


class Ends(Protocol):
    """Where a run may end early, with whole updates on all stages: before some microbatches."""

    def __contains__(self, microbatch: int) -> bool: ...

    def __bool__(self) -> bool: ...

    def before(self, microbatch: int) -> int | None:
        """Return where it may end if this microbatch fails: before its batch.

        None: it may not.  One that is further back does not do, as updates of some stages may have
        seen a batch between.
        """


@dataclass(frozen=True)
class Cuts:
    """It may end before these batches, in order, which are given by their microbatches."""

    batches: tuple[range, ...] = ()

    def __contains__(self, microbatch: int) -> bool:
        return self.before(microbatch) == microbatch

    def __bool__(self) -> bool:
        return bool(self.batches)

    def before(self, microbatch: int) -> int | None:
        """Return where it may end if this microbatch fails: before its batch."""
        place = bisect_right(self.batches, microbatch, key=lambda batch: batch.start)
        batch = self.batches[place - 1] if place else range(0)
        return batch.start if microbatch in batch else None


@dataclass(frozen=True)
class EachBatch:
    """It may end before any batch of so many microbatches, from one on."""

    begin: int
    size: int

    def __contains__(self, microbatch: int) -> bool:
        return self.before(microbatch) == microbatch

    def __bool__(self) -> bool:
        return True

    def before(self, microbatch: int) -> int | None:
        """Return where it may end if this microbatch fails: before its batch."""
        first = microbatch - microbatch % self.size
        return first if first >= self.begin else None


@dataclass(frozen=True)
class Window:
    """The batches of a table without end that a run has: from one on, until they end.

    Attributes:
        begin: its first microbatch.
        batch_size: microbatches of each batch.
        goes_on: whether others go on where it ends.
    """

    begin: int
    batch_size: int
    goes_on: bool = False

    def batches(self, end: int) -> list[range]:
        """Return the microbatches of each batch, for a run that ends before one."""
        starts = range(self.begin, end, self.batch_size)
        return [range(start, start + self.batch_size) for start in starts]
