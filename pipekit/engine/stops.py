"""Where a run may end early, with whole updates on all stages, and where it does."""

import sys
import threading
from bisect import bisect_right
from dataclasses import dataclass

from pipekit.schedules import Schedule
from pipekit.schedules.lowering.boundaries import boundaries
from pipekit.schedules.schedule import periods_under_way


class StopPoint:
    """The known end of a run, shared by workers: ``microbatch`` is the first after the run.

    The schedule stays whole: a run that ends before a microbatch executes every step of the
    microbatches before it, and skips all others.
    """

    def __init__(self) -> None:
        self.microbatch = sys.maxsize
        self._lock = threading.Lock()

    def __call__(self) -> int:
        """Return the first microbatch after the run, as far as it is known now."""
        return self.microbatch

    def at(self, microbatch: int) -> None:
        """End the run before a microbatch, unless it ends earlier."""
        with self._lock:  # workers may fail at the same time, in different batches
            self.microbatch = min(self.microbatch, microbatch)


@dataclass(frozen=True)
class PossibleStops:
    """The batches before which a run may end.

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

    def before(self, microbatch: int) -> int | None:
        """Return the possible end before a failed microbatch's own batch, or None.

        An earlier end is no remedy, since updates of some stages may have seen a batch in between.
        """
        first = microbatch - microbatch % self.size if self.size else 0
        place = bisect_right(self.batches, microbatch - first, key=lambda batch: batch.start)
        batch = self.batches[place - 1] if place else range(0)
        end = first + batch.start
        return end if microbatch - first in batch and end >= self.begin else None


def possible_stops(schedule: Schedule) -> PossibleStops:
    """Return where a run by a schedule may end early."""
    return schedule.remembered("possible stops", lambda: _possible_stops(schedule))


def _possible_stops(schedule: Schedule) -> PossibleStops:
    if not schedule.period:
        cuts = {0, *(boundary.microbatches for boundary in boundaries(schedule, every=1))}
        return PossibleStops(tuple(batch for batch in schedule.batches if batch.start in cuts))
    size = schedule.period_microbatches
    some = 1 if schedule.is_closed else 1 + periods_under_way(schedule)
    cuts = {0, *(b.microbatches for b in boundaries(schedule.before(some * size), every=1))}
    stops = schedule.batch_stops
    batches = map(range, (0, *stops), stops)
    found = (batch for batch in batches if cuts.issuperset(range(batch.start, some * size, size)))
    return PossibleStops(tuple(found), size)


def stops_anywhere(schedule: Schedule) -> bool:
    """Return whether a run by an endless schedule may end before each batch.

    Updates of stages on several workers may average several batches.
    """
    return len(possible_stops(schedule).batches) == len(schedule.batch_stops)
