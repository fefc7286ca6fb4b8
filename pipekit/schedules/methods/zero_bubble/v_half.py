"""V-Half: half of 1F1B's activations, by a V of two stages a worker (Qi et al., 2024)."""

from pipekit.schedules.flushed import flushed
from pipekit.schedules.methods.zero_bubble.building_block import Block, repeated
from pipekit.schedules.methods.zero_bubble.v_placement import v_workers
from pipekit.schedules.schedule import Schedule


def v_half(stages: int, microbatches: int) -> Schedule:
    """Return V-Half's schedule: every microbatch of batch ``t`` reads version ``t``.

    Worker ``w`` of ``p`` has the stages ``w`` and ``2 p - 1 - w``.  On the way down a microbatch
    comes to the next worker every other slot, on the way back every slot, so that the workers'
    activations are equally many: at most floor((p + 2) / 2) whole microbatches' (Pipeline
    Parallelism with Controllable Memory, section 3.2 and Table 1).  The slots are those of the
    authors' code (github.com/sail-sg/zero-bubble-pipeline-parallelism, zbv_greedy.py).

    Args:
        stages: how many stages, two a worker.
        microbatches: microbatches in each batch.

    Raises:
        ScheduleError: a count is below 1, or the number of stages is odd.
    """
    p = v_workers(stages, microbatches, "V-Half", "zb_h1")
    gap = 0 if p % 2 else 3  # so that no two passes of a worker want one slot
    blocks = [
        Block(2 * w, 3 * p - w - 2, 3 * p + gap + 2 * w - 1, 6 * p + gap - w - 2) for w in range(p)
    ]
    return Schedule(*flushed("V-Half", repeated(blocks, microbatches)))
