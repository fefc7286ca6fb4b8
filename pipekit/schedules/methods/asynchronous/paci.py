"""PACI: 1F1B without flushes, stashing or prediction, an update every few backwards.

Elam et al., "Breaking the Bubble: Asynchronous Pipeline Parallel Training with Bounded Weight
Inconsistency" (arXiv 2606.07881), section 3.
"""

from collections.abc import Iterator

from pipekit.schedules.methods.arguments import require_positive
from pipekit.schedules.methods.one_f_one_b import without_end
from pipekit.schedules.ops import Op
from pipekit.schedules.schedule import Schedule
from pipekit.schedules.task import Task


def paci(stages: int, microbatches: int) -> Schedule:
    """Return PACI's schedule: each stage sums m microbatches and then updates in place.

    Every pass reads the newest weights, so that a stage has one version.  Microbatch ``k`` (from 0)
    comes forward on stage ``s`` of ``n`` (from 0) when ``k - (n - s) + 1`` have come back, and so
    reads version ``max(0, k - (n - s) + 1) // m``; its backward reads ``k // m``.  They are at most
    ``ceil((n - 1) / m)`` updates apart, the paper's bound.  With ``m = 1`` this is PipeDream
    without stashing.

    Args:
        stages: pipeline depth n, one worker each.
        microbatches: m, the paper's accumulation factor a; each batch of the data has as many.

    Raises:
        ScheduleError: a count is below 1.
    """
    require_positive(stages=stages, microbatches=microbatches)

    def worker(stage: int) -> tuple[tuple[Task, ...], tuple[Task, ...]]:
        in_flight = stages - stage

        def tasks(op: Op, k: int) -> Iterator[Task]:
            seen = k if op is Op.BACKWARD else max(0, k - in_flight + 1)
            yield Task(op, stage, k, seen // microbatches)
            if op is Op.BACKWARD and (k + 1) % microbatches == 0:
                yield Task(Op.UPDATE, stage, k, k // microbatches + 1)

        return without_end(tasks, in_flight, settled=0, period=microbatches)

    head, period = zip(*map(worker, range(stages)), strict=True)
    return Schedule(head, "PACI", stashing=False, period=period)
