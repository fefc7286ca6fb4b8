"""Updates as late as their readers allow, so that passes hide the sums that they wait for."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import chain, pairwise

from pipekit.schedules.beginning import beginning, periods_under_way, starts
from pipekit.schedules.ops import OPS
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
    if not schedule.period:
        versions, lists = _begun_together(schedule), []
        for tasks in schedule.workers:
            waiting: dict[int, Task] = {}
            lists.append((*_moved(tasks, versions, waiting), *waiting.values()))
        return replace(schedule, head=tuple(lists))
    periods = 2 * periods_under_way(schedule) + 1
    some = beginning(schedule, periods)
    versions, folded, unchanged = _begun_together(some), [], True
    for worker, tasks in enumerate(some.workers):
        begins = starts(schedule, worker, periods)
        waiting = {}
        head = tuple(_moved(tasks[: begins[0]], versions, waiting))
        parts = [tuple(_moved(tasks[a:b], versions, waiting)) for a, b in pairwise(begins)]
        together = head + tuple(chain(*parts))
        unchanged &= together == tasks[: len(together)]
        folded.append(_folded(schedule, head, parts))
    if unchanged:
        return schedule
    placed = {*chain(*chain(*folded))}
    return replace(
        schedule,
        head=tuple(head for head, _ in folded),
        period=tuple(period for _, period in folded),
        overlaps=frozenset(pair for pair in some.overlaps if placed.issuperset(pair)),
    )


def _folded(
    schedule: Schedule, head: tuple[Task, ...], periods: list[tuple[Task, ...]]
) -> tuple[tuple[Task, ...], tuple[Task, ...]]:
    """Return a worker's head and period, given its first periods, of which the last are alike."""
    while len(periods) > 1 and _repeats(schedule, periods[-2:]):
        periods.pop()
    return head + tuple(chain(*periods[:-1])), periods[-1]


def _repeats(schedule: Schedule, periods: list[tuple[Task, ...]]) -> bool:
    first, second = periods
    return tuple(schedule.later(task, 1) for task in first) == second


def _moved(tasks: Iterable[Task], versions: set[int], waiting: dict[int, Task]) -> Iterator[Task]:
    """Yield a worker's tasks with some updates put off; ``waiting`` has these, by stage."""
    for task in tasks:
        update = waiting.get(task.stage)
        if update and task.version >= update.version:  # reads it, or is the next update
            yield waiting.pop(task.stage)
        if not OPS[task.op].is_pass and task.version in versions:
            waiting[task.stage] = task
        else:
            yield task


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
