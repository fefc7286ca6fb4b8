"""PipeDream-Flush: 1F1B within a batch, then a flush (PipeDream-2BW, section 3.2, Figure 3)."""

from pipekit.schedules.flushed import flushed
from pipekit.schedules.methods.arguments import require_positive
from pipekit.schedules.methods.one_f_one_b import stage_passes
from pipekit.schedules.schedule import Schedule


def flush(stages: int, microbatches: int) -> Schedule:
    """Return PipeDream-Flush's schedule: every microbatch of batch ``t`` reads version ``t``.

    As long as GPipe's, with at most ``stages`` microbatches in flight instead of ``microbatches``.

    Args:
        stages: how many stages, one worker each.
        microbatches: microbatches in each batch.

    Raises:
        ScheduleError: a count is below 1.
    """
    require_positive(stages=stages, microbatches=microbatches)
    return Schedule(
        *flushed(
            "PipeDream-Flush",
            (
                stage_passes(stage, microbatches, in_flight=stages - stage)
                for stage in range(stages)
            ),
        )
    )
