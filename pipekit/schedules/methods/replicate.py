"""Parallel pipelines, and updates as late as their readers allow, so that passes hide the sums."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import chain, pairwise

from pipekit.schedules.methods.flushed import require_positive
from pipekit.schedules.schedule import Schedule, beginning, periods_under_way, starts
from pipekit.schedules.task import Task, Tasks


def replicate(schedule: Schedule, width: int) -> Schedule:
    """Return ``width`` pipelines that each run ``schedule`` (PipeDream-2BW, section 3.3, Figure 4).

    Number ``k`` of the microbatches of pipeline ``r`` becomes ``k * width + r``, and worker ``w``
    becomes ``w * width + r``.  An update sums all pipelines' microbatches, which takes time; so it
    comes as late as its readers allow: of 2BW's a batch later, which hides the sums and keeps a
    second one.  One stage replicated is data parallelism: ``replicate(flush(1, m), workers)``.

    Raises:
        ScheduleError: ``width`` is below 1.
    """
    require_positive(width=width)

    def copied(task: Task, pipeline: int) -> Task:
        # An update is named after the last microbatch of the batch, which is the last pipeline's.
        op, number = task.op, pipeline if task.op.is_pass else width - 1
        whole, chunk = divmod(task.microbatch, schedule.chunks)
        op = op if op.peer is None else op.to(op.peer * width + pipeline)
        return task._replace(op=op, microbatch=(whole * width + number) * schedule.chunks + chunk)

    if width > 1 and not any(schedule.borrowed):  # from which others have them at once
        schedule = late_updates(schedule)

    def pipelines(lists: tuple[Tasks, ...]) -> tuple[Tasks, ...]:
        return tuple(
            tuple(copied(task, pipeline) for task in tasks)
            for tasks in lists
            for pipeline in range(width)
        )

    return replace(
        schedule,
        head=pipelines(schedule.head),
        name=f"{width} x {schedule.name}",
        batch_size=None,
        overlaps=frozenset(
            (copied(one, pipeline), copied(other, pipeline))
            for one, other in schedule.overlaps
            for pipeline in range(width)
        ),
        period=pipelines(schedule.period),
    )


def late_updates(schedule: Schedule) -> Schedule:
    """Return the schedule with each update right before its version begins to be read.

    The update of a version that nobody reads takes the place of the stage's next update, or comes
    at the end.  So a stage holds at most one sum of gradients more: it waits while the next grows.
    An update stays where it is if stages begin to read its version at different microbatches, as
    PipeDream's do: where all stages update together, none may put off one for which another waits.
    """
    periods = 2 * periods_under_way(schedule) + 1 if schedule.period else 0
    some = beginning(schedule, periods)
    versions, head, period = _begun_together(some), list[Tasks](), list[Tasks]()
    unchanged = True
    for worker, tasks in enumerate(some.workers):
        begins = starts(schedule, worker, periods) if periods else [len(tasks)]
        waiting: dict[int, Task] = {}
        first, *parts = (
            tuple(_moved(tasks[a:b], versions, waiting)) for a, b in pairwise([0, *begins])
        )
        together = (*first, *chain(*parts))
        unchanged &= together == tasks[: len(together)]
        if not periods:
            head.append((*first, *waiting.values()))
            continue
        while len(parts) > 1 and tuple(schedule.later(t, 1) for t in parts[-2]) == parts[-1]:
            parts.pop()
        head.append((*first, *chain(*parts[:-1])))
        period.append(parts[-1])
    if unchanged:
        return schedule
    placed = {*chain(*head, *period)}
    return replace(
        schedule,
        head=tuple(head),
        period=tuple(period),
        overlaps=frozenset(pair for pair in some.overlaps if placed.issuperset(pair)),
    )


def _moved(tasks: Iterable[Task], versions: set[int], waiting: dict[int, Task]) -> Iterator[Task]:
    """Yield a worker's tasks with some updates put off; ``waiting`` has these, by stage."""
    for task in tasks:
        update = waiting.get(task.stage)
        if update and task.version >= update.version:  # reads it, or is the next update
            yield waiting.pop(task.stage)
        if not task.op.is_pass and task.version in versions:
            waiting[task.stage] = task
        else:
            yield task


def _begun_together(schedule: Schedule) -> set[int]:
    """Return the versions that all stages begin to read at one microbatch, or that none reads."""
    first: dict[tuple[int, int], int] = {}  # microbatch, by stage and version
    for tasks in schedule.workers:
        for op, stage, microbatch, version in tasks:
            if op.is_pass:
                key = stage, version
                first[key] = min(microbatch, first.get(key, microbatch))
    return {
        version
        for version in range(1 + max(map(len, schedule.updates), default=0))
        if len({first.get((stage, version)) for stage in range(schedule.stages)}) == 1
    }
