"""Forward passes only: what evaluation runs."""

from collections.abc import Sequence

from pipekit.schedules.methods.arguments import require_positive
from pipekit.schedules.ops import Op
from pipekit.schedules.repeated import repeat
from pipekit.schedules.schedule import Schedule
from pipekit.schedules.task import Task


def inference(
    stages: int, microbatches: int, homes: Sequence[int] | None = None, workers: int = 0
) -> Schedule:
    """Return the schedule that streams ``microbatches`` forward through ``stages``.

    Args:
        stages: how many stages.
        microbatches: how many pass through.
        homes: the worker of each stage; by default one each.
        workers: how many there are, if more than that; the others are idle.

    Raises:
        ScheduleError: a count is below 1.
    """
    require_positive(stages=stages, microbatches=microbatches)
    homes = homes or range(stages)
    lists: list[list[Task]] = [[] for _ in range(max(workers, 1 + max(homes)))]
    for stage, home in enumerate(homes):
        lists[home].append(Task(Op.FORWARD, stage, 0, 0))
    repeated = (repeat(tasks, microbatches, microbatches=1, versions=0) for tasks in lists)
    return Schedule(tuple(repeated), "inference")
