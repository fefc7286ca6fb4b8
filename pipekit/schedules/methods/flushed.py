"""Batches one after the other, an update behind each: what methods with one version share."""

import math
from collections.abc import Collection, Iterable

from pipekit.schedules.schedule import Pass, Schedule
from pipekit.schedules.table import require_room
from pipekit.schedules.task import ScheduleError


def require_positive(**counts: int) -> None:
    """Raise ScheduleError for the first count that is not an integer of at least 1."""
    for name, count in counts.items():
        if not isinstance(count, int) or count < 1:
            raise ScheduleError(f"{name} must be a whole number of at least 1, not {count!r}")
    named = " x ".join(f"{count:,} {name}" for name, count in counts.items())
    require_room(named, math.prod(counts.values()))


def flushed(
    name: str,
    workers: Iterable[Iterable[Pass]],
    overlaps: Collection[tuple[Pass, Pass]] = (),
) -> Schedule:
    """Return the schedule without end of such batches (:meth:`.Schedule.one_batch`)."""
    return Schedule.one_batch(name, workers, overlaps).repeat()
