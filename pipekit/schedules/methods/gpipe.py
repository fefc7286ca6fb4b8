"""Whole batches through the stages, there and back: GPipe; one at a time, or forward only."""

from collections.abc import Sequence
from dataclasses import replace

from pipekit.schedules.methods.flushed import flushed, require_positive
from pipekit.schedules.ops import Op
from pipekit.schedules.schedule import Schedule
from pipekit.schedules.task import Task


def gpipe(stages: int, microbatches: int) -> Schedule:
    """Return GPipe's schedule: all forwards, all backwards, one update (section 3.2, Figure 2c).

    Backwards run in the order of the forwards, as in PipeDream-2BW's Figure 3; Figure 2c reverses
    them, which idles no less.  Each of the ``stages`` has a worker, each batch ``microbatches``.
    """
    require_positive(stages=stages, microbatches=microbatches)
    order = [(op, k) for op in (Op.FORWARD, Op.BACKWARD) for k in range(microbatches)]
    return flushed("GPipe", ([(op, stage, k) for op, k in order] for stage in range(stages)))


def model_parallel(stages: int) -> Schedule:
    """Return the schedule without pipelining: one minibatch at a time (PipeDream, Figure 3)."""
    return replace(gpipe(stages, microbatches=1), name="model parallel")


def inference(stages: int, homes: Sequence[int] | None = None, workers: int = 0) -> Schedule:
    """Return the schedule that streams microbatches forward through ``stages``, for evaluation.

    ``homes`` has the worker of each stage, by default one each; ``workers`` is how many there are,
    if more than that: the others are idle.
    """
    require_positive(stages=stages)
    homes = homes or range(stages)
    period: list[list[Task]] = [[] for _ in range(max(workers, 1 + max(homes)))]
    for stage, home in enumerate(homes):
        period[home].append(Task(Op.FORWARD, stage, 0, 0))
    return Schedule(((),) * len(period), "inference", period=tuple(map(tuple, period)))
