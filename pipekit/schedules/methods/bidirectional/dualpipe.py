"""DualPipe: microbatches from both ends, forwards under backwards (DeepSeek-V3, section 3.2.1)."""

from pipekit.schedules.errors import ScheduleError
from pipekit.schedules.flushed import Pass, flushed
from pipekit.schedules.methods.arguments import require_positive
from pipekit.schedules.methods.bidirectional.dualpipe_v import eight_phases
from pipekit.schedules.schedule import Schedule


def dualpipe(stages: int, microbatches: int) -> Schedule:
    """Return DualPipe's schedule: every microbatch of batch ``t`` reads version ``t``.

    Worker ``w`` of ``p`` has the stages ``w`` and ``p - 1 - w``: the first half of a batch goes
    down the workers, the second half up, so that every stage has two copies, whose gradients are
    summed.  A worker and its mirror image do the same (DeepSeek-V3 Technical Report, section 3.2.1,
    Figure 5; github.com/deepseek-ai/DualPipe, dualpipe.py): they go through
    :func:`pipekit.schedules.methods.bidirectional.dualpipe_v.eight_phases`.  The
    forwards and backwards of the steady phases are meant to run together, the communication of one
    under the computing of the other: they are the schedule's ``overlaps``.

    Args:
        stages: how many stages, and workers; an even number.
        microbatches: microbatches in each batch; an even number, at least ``2 * stages``.

    Raises:
        ScheduleError: a count is below 1 or odd, or there are too few microbatches.
    """
    require_positive(stages=stages, microbatches=microbatches)
    if stages % 2:
        raise ScheduleError(
            f"DualPipe's ways meet between two workers: use an even number of stages, not {stages}"
        )
    if microbatches % 2 or microbatches < 2 * stages:
        raise ScheduleError(
            f"DualPipe sends half of the microbatches each way, at least one a stage: use an even "
            f"number from {2 * stages}, not {microbatches} (or chimera, which takes any number)"
        )
    half = microbatches // 2
    workers: list[list[Pass]] = []
    overlaps: list[tuple[Pass, Pass]] = []
    for worker in range(stages):
        is_mirrored = worker >= stages // 2
        distance = min(worker, stages - 1 - worker)
        turns = eight_phases(distance, stages // 2, half, distance, stages - 1 - distance)

        def placed(each: Pass, up: bool = is_mirrored, near: int = distance) -> Pass:
            """Return a pass with its microbatch of the batch: what comes near first began here."""
            op, stage, k = each
            return op, stage, k + half * (up != (stage != near))

        workers.append([placed(each) for each in turns.passes])
        overlaps += [(placed(one), placed(other)) for one, other in turns.overlaps]
    return Schedule(*flushed("DualPipe", workers, overlaps))
