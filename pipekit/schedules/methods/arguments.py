"""The counts that every method takes."""

import math

from pipekit.schedules.errors import ScheduleError
from pipekit.units import bytes_text

MOST = 20_000_000
"""Microbatches of all stages of the largest table: each takes two tasks or more, some 300 bytes."""


def require_positive(**counts: int) -> None:
    """Raise ScheduleError for the first count that is not an integer of at least 1.

    Raises:
        ScheduleError: or the counts together would make a table that fits no memory.
    """
    for name, count in counts.items():
        if not isinstance(count, int) or count < 1:
            raise ScheduleError(f"{name} must be a whole number of at least 1, not {count!r}")
    size = math.prod(counts.values())
    if size > MOST:
        told = " x ".join(f"{count:,} {name}" for name, count in counts.items())
        raise ScheduleError(
            f"{told} are {size:,} passes each way, some {bytes_text(300 * size)} to write "
            f"out, and {MOST:,} are the most: run fewer batches at a time"
        )
