"""PipeDream-Flush: 1F1B within a batch, then a flush (PipeDream-2BW, section 3.2, Figure 3)."""

from pipekit.schedules.methods.arguments import require_positive, split_batches
from pipekit.schedules.methods.one_f_one_b import one_f_one_b
from pipekit.schedules.ops import Op
from pipekit.schedules.schedule import Schedule
from pipekit.schedules.task import Task


def flush(stages: int, microbatches: int, batches: int = 1) -> Schedule:
    """Return PipeDream-Flush's schedule: every microbatch of batch ``t`` reads version ``t``.

    As long as GPipe's, with at most ``stages`` microbatches in flight instead of ``microbatches``.

    Args:
        stages: how many stages, one worker each.
        microbatches: microbatches in each batch.
        batches: how many batches, each ended by a flush and an update.

    Raises:
        ScheduleError: a count is below 1.
    """
    require_positive(stages=stages, microbatches=microbatches, batches=batches)

    def worker(stage: int) -> list[Task]:
        tasks = []
        for t, batch in enumerate(split_batches(microbatches, batches)):
            tasks += [Task(op, stage, k, t) for op, k in one_f_one_b(stage, stages, batch)]
            tasks.append(Task(Op.UPDATE, stage, batch[-1], t + 1))
        return tasks

    return Schedule(tuple(tuple(worker(s)) for s in range(stages)), "PipeDream-Flush")
