"""Chimera: two 1F1B pipelines in opposite directions on the same workers (Li & Hoefler, 2021)."""

from collections.abc import Iterator

from pipekit.schedules.methods.flushed import flushed, require_positive
from pipekit.schedules.ops import Op
from pipekit.schedules.schedule import Pass, Schedule
from pipekit.schedules.task import ScheduleError


def chimera(stages: int, microbatches: int) -> Schedule:
    """Return Chimera's schedule: every microbatch of batch ``t`` reads version ``t``.

    Worker ``w`` of ``D`` has stage ``w`` of the pipeline that goes down and stage ``D - 1 - w`` of
    the one that goes up; every stage has two copies, whose gradients are summed (Chimera, SC '21,
    section 3.1, Figure 3).  A basic unit is ``D`` microbatches, of which the first half goes down.
    With passes in slots of equal length, microbatch ``i`` of a half goes forward on the ``s``-th
    worker of its way in slot ``2 i + s`` and backward in slot ``2 (i + D) - 1 - s``, so that the
    two pipelines never want a worker at once.  More than ``D`` microbatches are units one after
    another, each ``2 D`` slots later: the next one fills the slots that the one before leaves empty
    (section 3.5, direct concatenation).

    Args:
        stages: D, the number of stages, and of workers; an even number.
        microbatches: N, the microbatches in each batch.

    Raises:
        ScheduleError: a count is below 1, or the number of stages is odd.
    """
    require_positive(stages=stages, microbatches=microbatches)
    if stages % 2:
        raise ScheduleError(
            f"Chimera's two pipelines fit together with an even number of stages only, not "
            f"{stages}: use one stage more or less, or flush"
        )

    def slots(worker: int) -> Iterator[tuple[int, Pass]]:
        for start in range(0, microbatches, stages):
            unit = range(start, min(start + stages, microbatches))
            middle = (len(unit) + 1) // 2
            for half, stage in ((unit[:middle], worker), (unit[middle:], stages - 1 - worker)):
                for i, k in enumerate(half):
                    first = 2 * (start + i)
                    yield first + stage, (Op.FORWARD, stage, k)
                    yield first + 2 * stages - 1 - stage, (Op.BACKWARD, stage, k)

    by_slot = (sorted(slots(worker), key=lambda s: s[0]) for worker in range(stages))
    return flushed("Chimera", ([each for _, each in placed] for placed in by_slot))
