"""V-Min: a third of 1F1B's activations, by a V of two stages a worker (Qi et al., 2024)."""

from pipekit.schedules.flushed import flushed
from pipekit.schedules.methods.zero_bubble.building_block import Block, repeated
from pipekit.schedules.methods.zero_bubble.v_placement import v_workers
from pipekit.schedules.schedule import Schedule


def v_min(stages: int, microbatches: int) -> Schedule:
    """Return V-Min's schedule: every microbatch of batch ``t`` reads version ``t``.

    Worker ``w`` of ``p`` has the stages ``w`` and ``2 p - 1 - w``.  A microbatch comes to the next
    worker in the next slot, both ways, so that its activations live as shortly as they can: at most
    floor((p + 4) / 3) whole microbatches' at once (Pipeline Parallelism with Controllable Memory,
    section 3.2 and Table 1).  In return, passes that do not take equally long make workers wait.
    The slots are those of the authors' code (github.com/sail-sg/zero-bubble-pipeline-parallelism,
    zbv_greedy.py).

    Args:
        stages: how many stages, two a worker.
        microbatches: microbatches in each batch.

    Raises:
        ScheduleError: a count is below 1, or the number of stages is odd.
    """
    p = v_workers(stages, microbatches, "V-Min", "zb_h1")
    gap = 0 if p % 3 else 2  # so that no two passes of a worker want one slot
    blocks = [Block(w, 2 * p - w - 1, 2 * p + gap + w, 4 * p + gap - w - 1) for w in range(p)]
    return Schedule(*flushed("V-Min", repeated(blocks, microbatches)))
