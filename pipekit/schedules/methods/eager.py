"""Eager 1F1B: twice 1F1B's warm-up, so that links may take time (Zhuang et al., 2023)."""

from pipekit.schedules.flushed import flushed
from pipekit.schedules.methods.arguments import require_positive
from pipekit.schedules.methods.one_f_one_b import stage_passes
from pipekit.schedules.schedule import Schedule


def eager(stages: int, microbatches: int) -> Schedule:
    """Return eager 1F1B's schedule: every microbatch of batch ``t`` reads version ``t``.

    Worker ``w`` (from 0) of ``p`` admits ``2 (p - 1 - w)`` forwards before it alternates, where
    :func:`pipekit.schedules.flush` admits half as many (On Optimizing the Communication of Model
    Parallelism, MLSys 2023, arXiv 2211.05322; in its code, github.com/alpa-projects/alpa,
    ``OverlapFriendlyPipeDreamSchedule``).  Without links it is as long; with slow ones, a message
    on its way there or back keeps nobody waiting as long as it takes no longer than a pass.  Worker
    ``w`` has ``2 (p - w) - 1`` microbatches in flight.

    Args:
        stages: how many stages, one worker each.
        microbatches: microbatches in each batch.

    Raises:
        ScheduleError: a count is below 1.
    """
    require_positive(stages=stages, microbatches=microbatches)
    return Schedule(
        *flushed(
            "eager 1F1B",
            (
                stage_passes(worker, microbatches, in_flight=2 * (stages - worker) - 1)
                for worker in range(stages)
            ),
        )
    )
