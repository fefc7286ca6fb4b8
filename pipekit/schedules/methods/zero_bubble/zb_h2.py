"""ZB-H2: twice 1F1B's memory for no bubble in a worker's span (Qi et al., 2023, section 2.2)."""

from pipekit.schedules.flushed import flushed
from pipekit.schedules.methods.arguments import require_positive
from pipekit.schedules.methods.one_f_one_b import stage_passes
from pipekit.schedules.methods.zero_bubble.split_backwards import split_backwards
from pipekit.schedules.schedule import Schedule


def zb_h2(stages: int, microbatches: int) -> Schedule:
    """Return ZB-H2's schedule: every microbatch of batch ``t`` reads version ``t``.

    Worker ``w`` (from 0) of ``p`` goes through four phases (Zero Bubble Pipeline Parallelism, ICLR
    2024, section 2.2, Figure 3 below):

    - warm-up: ``2 (p - 1 - w)`` forwards, enough to fill the time until the first I;
    - filling: ``2 w`` times F I, so that every worker has ``2 p - 1`` microbatches in flight;
    - steady: F I W, each W that of the microbatch ``2 w`` before;
    - drain: I W, and ``2 w`` times W.

    With passes that take equally long, no worker idles between its first task and its last.  All
    begin and end one after the other, so that the makespan of a single batch is that of
    :func:`pipekit.schedules.zb_h1`; what is gained shows when batches follow one another, and no
    update waits for other workers.

    Args:
        stages: how many stages, one worker each.
        microbatches: microbatches in each batch.

    Raises:
        ScheduleError: a count is below 1.
    """
    require_positive(stages=stages, microbatches=microbatches)
    return Schedule(
        *flushed(
            "ZB-H2",
            (
                split_backwards(
                    stage_passes(worker, microbatches, in_flight=2 * (stages - worker) - 1),
                    waiting=2 * worker,
                )
                for worker in range(stages)
            ),
        )
    )
