"""The V: a worker has a stage on the way down and one on the way back."""

from pipekit.schedules.errors import ScheduleError
from pipekit.schedules.methods.arguments import require_positive


def v_workers(stages: int, microbatches: int, method: str, straight: str) -> int:
    """Return how many workers share the stages, two each.

    Args:
        stages: how many stages.
        microbatches: microbatches in each batch.
        method: its name, for the message.
        straight: what to use with one stage a worker.

    Raises:
        ScheduleError: a count is below 1, or the number of stages is odd.
    """
    require_positive(stages=stages, microbatches=microbatches)
    if stages % 2:
        raise ScheduleError(
            f"{method} has two stages a worker: use an even number of stages, not {stages} "
            f"(one stage a worker is {straight})"
        )
    return stages // 2


def v_stages(worker: int, workers: int) -> tuple[int, int]:
    """Return a worker's stages: the last worker has two in a row, and the first the ends."""
    return worker, 2 * workers - 1 - worker
