"""PACI: 1F1B without flushes, stashing or prediction, an update every few backwards.

Elam et al., "Breaking the Bubble: Asynchronous Pipeline Parallel Training with Bounded Weight
Inconsistency" (arXiv 2606.07881), section 3.
"""

from pipekit.schedules.methods.arguments import require_positive
from pipekit.schedules.methods.one_f_one_b import one_f_one_b
from pipekit.schedules.ops import Op
from pipekit.schedules.schedule import Schedule
from pipekit.schedules.task import Task


def paci(stages: int, microbatches: int, batches: int) -> Schedule:
    """Return PACI's schedule: each stage sums m microbatches and then updates in place.

    Every pass reads the newest weights, so that a stage has one version.  Microbatch ``k`` (from 0)
    comes forward on stage ``s`` of ``n`` (from 0) when ``k - (n - s) + 1`` have come back, and so
    reads version ``max(0, k - (n - s) + 1) // m``; its backward reads ``k // m``.  They are at most
    ``ceil((n - 1) / m)`` updates apart, the paper's bound.  With ``m = 1`` this is PipeDream
    without stashing.

    Args:
        stages: pipeline depth n, one worker each.
        microbatches: m, the paper's accumulation factor a; each batch of the data has as many.
        batches: how many batches.

    Raises:
        ScheduleError: a count is below 1.
    """
    require_positive(stages=stages, microbatches=microbatches, batches=batches)

    def worker(stage: int) -> list[Task]:
        tasks = []
        for op, k in one_f_one_b(stage, stages, range(microbatches * batches)):
            seen = k if op is Op.BACKWARD else max(0, k - (stages - stage) + 1)
            tasks.append(Task(op, stage, k, seen // microbatches))
            if op is Op.BACKWARD and (k + 1) % microbatches == 0:
                tasks.append(Task(Op.UPDATE, stage, k, k // microbatches + 1))
        return tasks

    return Schedule(tuple(tuple(worker(s)) for s in range(stages)), "PACI", stashing=False)
