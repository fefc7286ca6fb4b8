"""Where a run ends, if that is before the end of its schedule.

The schedule is the same to the end, and the rest of it is passed over: a run that ends before a
microbatch does everything for those before it and nothing for the others.
"""

import sys
import threading
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass

from pipekit.schedules import Step, Steps


class BeyondStop(Exception):
    """The run ends before the microbatch that is waited for."""


class StopPoint:
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

    def until(self, steps: Steps) -> Iterator[Step]:
        """Yield the steps that are part of the run, as far as it is known when each comes."""
        return steps.until(lambda: self.microbatch)


@dataclass(frozen=True)
class PossibleStops:
    """Where a run may end early, with whole updates on all stages: before some batches.

    Attributes:
        batches: these, in order, as ranges of microbatches.
        size: the microbatches after which they repeat, without end; 0: they do not.
        begin: the run's first microbatch.
    """

    batches: tuple[range, ...] = ()
    size: int = 0
    begin: int = 0

    def __contains__(self, microbatch: int) -> bool:
        return self.before(microbatch) == microbatch

    def __bool__(self) -> bool:
        return bool(self.batches)

    def before(self, microbatch: int) -> int | None:
        """Return where it may end if this microbatch fails: before its batch.

        None: it may not.  One that is further back does not do, as updates of some stages may have
        seen a batch between.
        """
        first = microbatch - microbatch % self.size if self.size else 0
        place = bisect_right(self.batches, microbatch - first, key=lambda batch: batch.start)
        batch = self.batches[place - 1] if place else range(0)
        end = first + batch.start
        return end if microbatch - first in batch and end >= self.begin else None
