"""PipeDream-2BW: 1F1B without flushes, two weight versions (section 3.1, Figure 2)."""

from pipekit.schedules.errors import ScheduleError
from pipekit.schedules.methods.arguments import require_positive
from pipekit.schedules.methods.one_f_one_b import one_f_one_b
from pipekit.schedules.ops import Op
from pipekit.schedules.schedule import Schedule
from pipekit.schedules.task import Task


def two_bw(stages: int, microbatches: int, batches: int) -> Schedule:
    """Return 2BW's schedule: W(t+1) = W(t) - nu * grad f(W(t-1)).

    Microbatch ``k`` (from 1, as in the paper) reads version ``max(floor((k-1)/m) - 1, 0)`` on all
    stages, forward and backward.

    Args:
        stages: pipeline depth d, one worker each.
        microbatches: m, the microbatches summed by each update; at least ``stages``.
        batches: how many batches of m.

    Raises:
        ScheduleError: a count is below 1, or ``microbatches < stages``.
    """
    require_positive(stages=stages, microbatches=microbatches, batches=batches)
    if microbatches < stages:
        raise ScheduleError(
            f"2BW needs at least as many microbatches a batch as stages: use microbatches >= "
            f"{stages} (not {microbatches}) or at most {microbatches} stages"
        )

    def worker(stage: int) -> list[Task]:
        tasks = []
        for op, k in one_f_one_b(stage, stages, range(microbatches * batches)):
            batch = k // microbatches
            tasks.append(Task(op, stage, k, max(batch - 1, 0)))
            if op is Op.BACKWARD and (k + 1) % microbatches == 0:
                tasks.append(Task(Op.UPDATE, stage, k, batch + 1))
        return tasks

    return Schedule(tuple(tuple(worker(s)) for s in range(stages)), "PipeDream-2BW")
