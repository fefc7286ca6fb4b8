"""Forward passes only: what evaluation runs."""

from collections.abc import Sequence

from pipekit.schedules.methods.arguments import require_positive
from pipekit.schedules.ops import Op
from pipekit.schedules.schedule import Schedule
from pipekit.schedules.task import Task


def inference(stages: int, homes: Sequence[int] | None = None, workers: int = 0) -> Schedule:
    """Return the schedule that streams microbatches forward through ``stages``.

    Args:
        stages: how many stages.
        homes: the worker of each stage; by default one each.
        workers: how many there are, if more than that; the others are idle.

    Raises:
        ScheduleError: a count is below 1.
    """
    require_positive(stages=stages)
    homes = homes or range(stages)
    period: list[list[Task]] = [[] for _ in range(max(workers, 1 + max(homes)))]
    for stage, home in enumerate(homes):
        period[home].append(Task(Op.FORWARD, stage, 0, 0))
    return Schedule(((),) * len(period), "inference", period=tuple(map(tuple, period)))
