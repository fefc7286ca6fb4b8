"""Updates as late as their readers allow, so that passes hide the sums that they wait for."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from pipekit.schedules.schedule import Schedule
from pipekit.schedules.task import Op, Task


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
    begins = _begins(schedule)

    def moved(tasks: Sequence[Task]) -> Iterator[Task]:
        waiting: dict[int, Task] = {}  # updates, by stage
        for task in tasks:
            update = waiting.get(task.stage)
            if update and (task.op is Op.UPDATE or task.microbatch >= begins[update.version]):
                yield waiting.pop(task.stage)
            if task.op is Op.UPDATE and task.version in begins:
                waiting[task.stage] = task
            else:
                yield task
        yield from waiting.values()

    return replace(schedule, workers=tuple(tuple(moved(tasks)) for tasks in schedule.workers))


def _begins(schedule: Schedule) -> dict[int, float]:
    """Return with which microbatch all stages begin to read each version, if it is the same one."""
    firsts: dict[tuple[int, int], int] = {}  # by stage and version
    for tasks in schedule.workers:
        for op, stage, microbatch, version in tasks:
            if op is not Op.UPDATE:
                key = stage, version
                firsts[key] = min(microbatch, firsts.get(key, microbatch))
    found: dict[int, float] = {}
    for version in range(1, 1 + max(map(len, schedule.updates), default=0)):
        begin, *others = {firsts.get((s, version), math.inf) for s in range(schedule.stages)}
        if not others:
            found[version] = begin
    return found
