"""An early end of a run.

The schedule stays whole: a run that ends before a microbatch executes every step of the
microbatches before it, and skips all others.
"""

import sys
import threading
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass

from pipekit.schedules import Step, Steps


class BeyondStop(Exception):
    """The run ends before the microbatch that a worker waits for."""


class StopPoint:
    """The known end of a run, shared by workers: ``microbatch`` is the first after the run."""

    def __init__(self) -> None:
        self.microbatch = sys.maxsize
        self._lock = threading.Lock()

    def at(self, microbatch: int) -> None:
        """End the run before a microbatch, unless it ends earlier."""
        with self._lock:  # workers may fail at the same time, in different batches
            self.microbatch = min(self.microbatch, microbatch)

    def until(self, steps: Steps) -> Iterator[Step]:
        """Yield the steps of the run, up to the end as it is known at each step."""
        return steps.until(lambda: self.microbatch)


@dataclass(frozen=True)
class PossibleStops:
    """Where a run may end early, with whole updates on all stages: before some batches.

    Attributes:
        batches: these, in order, as ranges of microbatches.
        size: the number of microbatches after which they repeat; 0: they do not.
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
        """Return the possible end before a failed microbatch's own batch, or None.

        An earlier end is no remedy, since updates of some stages may have seen a batch in between.
        """
        first = microbatch - microbatch % self.size if self.size else 0
        place = bisect_right(self.batches, microbatch - first, key=lambda batch: batch.start)
        batch = self.batches[place - 1] if place else range(0)
        end = first + batch.start
        return end if microbatch - first in batch and end >= self.begin else None
