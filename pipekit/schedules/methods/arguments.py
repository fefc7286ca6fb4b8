"""The counts that every method takes."""

from pipekit.schedules.errors import ScheduleError


def require_positive(**counts: int) -> None:
    """Raise ScheduleError for the first count that is not an integer of at least 1."""
    for name, count in counts.items():
        if not isinstance(count, int) or count < 1:
            raise ScheduleError(f"{name} must be a whole number of at least 1, not {count!r}")


def split_batches(microbatches: int, batches: int) -> list[range]:
    """Return the microbatches of each of ``batches`` batches of ``microbatches``."""
    return [range(b * microbatches, (b + 1) * microbatches) for b in range(batches)]
