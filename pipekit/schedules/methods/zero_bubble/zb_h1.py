"""ZB-H1: 1F1B with backwards in two parts, within 1F1B's memory (Qi et al., 2023, section 2.1)."""

from pipekit.schedules.flushed import flushed
from pipekit.schedules.methods.arguments import require_positive
from pipekit.schedules.methods.one_f_one_b import stage_passes
from pipekit.schedules.methods.zero_bubble.split_backwards import split_backwards
from pipekit.schedules.schedule import Schedule


def zb_h1(stages: int, microbatches: int) -> Schedule:
    """Return ZB-H1's schedule: every microbatch of batch ``t`` reads version ``t``.

    Worker ``w`` (from 0) of ``p`` goes through four phases (Zero Bubble Pipeline Parallelism, ICLR
    2024, section 2.1, Figure 3 above):

    - warm-up: ``p - 1 - w`` forwards, as in 1F1B;
    - filling: ``w`` times F I, so that every worker has ``p`` microbatches in flight;
    - steady: F I W, each W that of the microbatch ``w`` before;
    - drain: I W, and ``w`` times W.

    With F, I and W the time of each pass, one batch takes m (F + I + W) + (p - 1) (F + I - W) if W
    is not longer than F or I; else more.

    Args:
        stages: how many stages, one worker each.
        microbatches: microbatches in each batch.

    Raises:
        ScheduleError: a count is below 1.
    """
    require_positive(stages=stages, microbatches=microbatches)
    return Schedule(
        *flushed(
            "ZB-H1",
            (
                split_backwards(
                    stage_passes(worker, microbatches, in_flight=stages - worker), waiting=worker
                )
                for worker in range(stages)
            ),
        )
    )
