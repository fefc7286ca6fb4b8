"""Forward passes only: what evaluation runs."""

from pipekit.schedules.arguments import require_positive
from pipekit.schedules.schedule import Schedule
from pipekit.schedules.task import Op, Task


def inference(stages: int, microbatches: int) -> Schedule:
    """Return the schedule that streams ``microbatches`` forward through ``stages``.

    Raises:
        ScheduleError: a count is below 1.
    """
    require_positive(stages=stages, microbatches=microbatches)
    return Schedule(
        tuple(
            tuple(Task(Op.FORWARD, stage, k, 0) for k in range(microbatches))
            for stage in range(stages)
        ),
        "inference",
    )
