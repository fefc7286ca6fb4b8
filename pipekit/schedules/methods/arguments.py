"""The counts that every method takes."""

import math

from pipekit.schedules.errors import ScheduleError
from pipekit.schedules.table import require_room


def require_positive(**counts: int) -> None:
    """Raise ScheduleError for the first count that is not an integer of at least 1.

    Raises:
        ScheduleError: or the counts together would make a table that fits no memory.
    """
    for name, count in counts.items():
        if not isinstance(count, int) or count < 1:
            raise ScheduleError(f"{name} must be a whole number of at least 1, not {count!r}")
    told = " x ".join(f"{count:,} {name}" for name, count in counts.items())
    require_room(told, math.prod(counts.values()))
