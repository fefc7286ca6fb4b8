"""The first microbatches of a worker's list, and how many a table may have."""

from collections.abc import Iterable

from pipekit.schedules.task import ScheduleError, Task
from pipekit.units import bytes_text

Tasks = tuple[Task, ...]
MOST = 20_000_000
"""Microbatches of all stages of the largest table: each takes two tasks or more, some 300 bytes."""


def cut(tasks: Iterable[Task], microbatch: int) -> Tasks:
    """Return a worker's tasks of the microbatches before one; see :meth:`.Table.take`.

    Work in the idle time of a batch behind the end names a later version, and goes, too.
    """
    kept: list[Task] = []
    summed: dict[int, int] = {}  # by stage: the microbatch behind its last update
    later: set[tuple[int, int]] = set()  # stage and version of updates behind the end
    for task in tasks:
        op, stage, number, version = task
        if op.is_pass:
            if number < microbatch:
                kept.append(task)
        elif summed.get(stage, 0) < microbatch:
            last = min(number, microbatch - 1)
            kept.append(Task(op, stage, last, version))
            summed[stage] = last + 1
        else:
            later.add((stage, version))
    here = {task.stage for task in kept if task.op.is_pass}
    return tuple(
        task for task in kept if task.stage in here and (task.stage, task.version) not in later
    )


def require_room(counts: str, passes: int) -> None:
    """Raise ScheduleError if a table would fit no memory."""
    if passes > MOST:
        raise ScheduleError(
            f"{counts} are {passes:,} passes each way, some {bytes_text(300 * passes)} to write "
            f"out, and {MOST:,} are the most: run fewer batches at a time"
        )
