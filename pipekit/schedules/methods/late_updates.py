"""Updates as late as their readers allow, so that passes hide the sums that they wait for."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from pipekit.schedules.ops import OPS
from pipekit.schedules.repeated import distinct
from pipekit.schedules.schedule import Schedule
from pipekit.schedules.task import Task


def late_updates(schedule: Schedule) -> Schedule:
    """Return the schedule with each update right before its version begins to be read.

    The update of a version that nobody reads takes the place of the stage's next update, or comes
    at the end.  So a stage holds at most two sums of gradients: one grows while the other waits.

    An update stays where it is if stages begin to read its version at different microbatches, as
    PipeDream's do.  For where all stages update together (gradients clipped by the norm over the
    whole model), none may put off an update for which another one waits.

    Args:
        schedule: whose updates come after the backwards that they sum.
    """
    if schedule.period:
        twice = tuple(tuple(tasks[: 2 * len(distinct(tasks))]) for tasks in schedule.workers)
        size = 2 * schedule.period.microbatches
        overlaps = [pair for pair in schedule.overlaps if all(t.microbatch < size for t in pair)]
        two = replace(schedule, workers=twice, overlaps=frozenset(overlaps))
        if late_updates(two) == two:  # and so it is with every other repetition
            return schedule
    put_off = _begun_together(schedule)

    def moved(tasks: Sequence[Task]) -> Iterator[Task]:
        waiting: dict[int, Task] = {}  # updates, by stage
        for task in tasks:
            update = waiting.get(task.stage)
            if update and task.version >= update.version:  # reads it, or is the next update
                yield waiting.pop(task.stage)
            if not OPS[task.op].is_pass and task.version in put_off:
                waiting[task.stage] = task
            else:
                yield task
        yield from waiting.values()

    return replace(schedule, workers=tuple(tuple(moved(tasks)) for tasks in schedule.workers))


def _begun_together(schedule: Schedule) -> set[int]:
    """Return the versions that all stages begin to read at one microbatch, or that none reads."""
    first: dict[tuple[int, int], int] = {}  # microbatch, by stage and version
    for tasks in schedule.workers:
        for op, stage, microbatch, version in tasks:
            if OPS[op].is_pass:
                key = stage, version
                first[key] = min(microbatch, first.get(key, microbatch))
    return {
        version
        for version in range(1 + max(map(len, schedule.updates), default=0))
        if len({first.get((stage, version)) for stage in range(schedule.stages)}) == 1
    }
