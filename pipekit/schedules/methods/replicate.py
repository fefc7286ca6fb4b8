"""Parallel pipelines: a schedule run side by side on several sets of workers."""

from dataclasses import replace

from pipekit.schedules.methods.arguments import require_positive
from pipekit.schedules.methods.late_updates import late_updates
from pipekit.schedules.ops import OPS
from pipekit.schedules.schedule import Schedule
from pipekit.schedules.task import Task


def replicate(schedule: Schedule, width: int) -> Schedule:
    """Return ``width`` pipelines that each run ``schedule`` (PipeDream-2BW, section 3.3, Figure 4).

    A batch has ``width`` times as many microbatches: number ``k`` of pipeline ``r`` becomes
    ``k * width + r``.  An update sums those of all pipelines, and every stage has a copy in each.
    That takes time, so updates come as late as their readers allow: of 2BW's a batch later, which
    hides the sums and keeps a second one (:func:`late_updates`).
    Worker ``w`` of pipeline ``r`` becomes ``w * width + r``, so that the copies of a stage are
    neighbours.  One stage replicated is data parallelism: ``replicate(flush(1, m), workers)``.

    Args:
        schedule: of one pipeline.
        width: how many pipelines.

    Raises:
        ScheduleError: ``width`` is below 1.
    """
    require_positive(width=width)

    def copied(task: Task, pipeline: int) -> Task:
        # An update is named after the last microbatch of the batch, which is the last pipeline's.
        number = pipeline if OPS[task.op].is_pass else width - 1
        return task._replace(microbatch=task.microbatch * width + number)

    if width > 1:
        schedule = late_updates(schedule)

    def pipelines(lists: tuple[tuple[Task, ...], ...]) -> tuple[tuple[Task, ...], ...]:
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
