"""Interleaved 1F1B with backwards in two parts (torch's ScheduleInterleavedZeroBubble)."""

from pipekit.schedules.flushed import flushed
from pipekit.schedules.methods.arguments import require_positive
from pipekit.schedules.methods.looped.interleaved import interleaved_passes, require_loop
from pipekit.schedules.methods.zero_bubble.split_backwards import split_backwards
from pipekit.schedules.schedule import Schedule


def interleaved_zero_bubble(stages: int, microbatches: int, *, workers: int) -> Schedule:
    """Return the schedule: every microbatch of batch ``t`` reads version ``t``.

    What :func:`pipekit.schedules.zb_h1` is to 1F1B, this is to interleaved 1F1B; it is what
    ``torch.distributed.pipelining`` generates as ``ScheduleInterleavedZeroBubble``, there only for
    microbatches that divide into equal rounds.  Worker ``w`` (from 0) of ``p`` has ``v`` stages,
    ``w``, ``w + p``, ..., and four phases:

    - warm-up: a round of microbatches through all its stages but one, and ``p - 1 - w`` forwards;
    - filling: ``w`` times F I;
    - steady: F I W, each W that of the pass ``w`` before;
    - drain: I W, and ``w`` times W.

    Args:
        stages: how many stages; a multiple of ``workers``, at least twice as many.
        microbatches: microbatches in each batch.
        workers: how many workers share the stages.

    Raises:
        ScheduleError: a count is below 1, or the workers cannot share the stages equally.
    """
    require_loop(stages, workers, "interleaved", "zb_h1")
    require_positive(microbatches=microbatches)
    return Schedule(
        *flushed(
            "interleaved zero bubble",
            (
                split_backwards(
                    interleaved_passes(
                        range(worker, stages, workers), microbatches, workers, ahead=1
                    ),
                    waiting=worker,
                )
                for worker in range(workers)
            ),
        )
    )
