"""GPipe: all forwards, all backwards, one synchronous update (GPipe, section 3.2, Figure 2c)."""

from pipekit.schedules.flushed import flushed
from pipekit.schedules.methods.arguments import require_positive
from pipekit.schedules.ops import Op
from pipekit.schedules.schedule import Schedule


def gpipe(stages: int, microbatches: int) -> Schedule:
    """Return GPipe's schedule: every microbatch of batch ``t`` reads version ``t``.

    Backwards run in the order of the forwards, as PipeDream-2BW's Figure 3 draws them; GPipe's own
    Figure 2c draws them reversed, which idles no less and sums the same gradients.

    Args:
        stages: how many stages, one worker each.
        microbatches: microbatches in each batch.

    Raises:
        ScheduleError: a count is below 1.
    """
    require_positive(stages=stages, microbatches=microbatches)
    return Schedule(
        *flushed(
            "GPipe",
            (
                [(op, stage, k) for op in (Op.FORWARD, Op.BACKWARD) for k in range(microbatches)]
                for stage in range(stages)
            ),
        )
    )
