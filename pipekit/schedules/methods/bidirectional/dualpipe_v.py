"""DualPipeV: DualPipe folded into a V, without the second copy of the weights (DeepSeek, 2025)."""

from pipekit.schedules.errors import ScheduleError
from pipekit.schedules.flushed import flushed
from pipekit.schedules.methods.zero_bubble.turns import Turns
from pipekit.schedules.methods.zero_bubble.v_placement import v_stages, v_workers
from pipekit.schedules.ops import Op
from pipekit.schedules.schedule import Schedule


def dualpipe_v(stages: int, microbatches: int) -> Schedule:
    """Return DualPipeV's schedule: every microbatch of batch ``t`` reads version ``t``.

    Worker ``w`` of ``p`` has the stages ``w`` and ``2 p - 1 - w`` and goes through
    :func:`eight_phases` (github.com/deepseek-ai/DualPipe, dualpipev.py, which
    ``torch.distributed.pipelining`` follows in ``ScheduleDualPipeV``).

    Args:
        stages: how many stages, two a worker.
        microbatches: microbatches in each batch, at least as many as stages.

    Raises:
        ScheduleError: a count is below 1, the number of stages is odd, or there are too few
            microbatches.
    """
    workers = v_workers(stages, microbatches, "DualPipeV", "zb_h1")
    if microbatches < stages:
        raise ScheduleError(
            f"DualPipeV needs at least as many microbatches as stages: use microbatches >= "
            f"{stages}, not {microbatches} (or zb_v, which takes any number)"
        )
    each = [
        eight_phases(worker, workers, microbatches, *v_stages(worker, workers))
        for worker in range(workers)
    ]
    return Schedule(
        *flushed(
            "DualPipeV",
            [turns.passes for turns in each],
            [pair for turns in each for pair in turns.overlaps],
        )
    )


def eight_phases(worker: int, workers: int, microbatches: int, near: int, far: int) -> Turns:
    """Return a worker's passes of a batch, in DualPipe's phases.

    Phase 4 is the steady one; each of its forwards runs together with a backward, as do those of
    phase 5.  Backwards are whole up to the middle of phase 6, but for phase 3.

    Args:
        worker: its number, the last one being where the two ways meet.
        workers: how many there are on a way.
        microbatches: on each of the worker's two stages.
        near: the stage that a microbatch comes to first, at ``worker`` stages from an end.
        far: the stage that another one comes to last, at ``worker`` stages from the same end.
    """
    turns, behind = Turns(), workers - 1 - worker
    for _ in range(2 * behind):  # 1: forwards of the near stage
        turns.add(Op.FORWARD, near)
    for _ in range(worker + 1):  # 2: forwards of both
        turns.add(Op.FORWARD, near, far)
    for _ in range(behind):  # 3: backwards and forwards of the far stage
        turns.add(Op.BACKWARD_INPUT, far)
        turns.add_weights()
        turns.add(Op.FORWARD, far)
    for number in range(microbatches - 2 * workers + worker + 1):  # 4: steady
        if number == 0 and not behind:  # apart, which makes the bubble smaller still
            turns.add(Op.FORWARD, near)
            turns.add(Op.BACKWARD, far)
        else:
            turns.add_overlap(near, far)
        turns.add_overlap(far, near)
    for _ in range(behind):  # 5: backwards of the far stage, and the rest of its forwards
        turns.add(Op.BACKWARD, far)
        turns.add_overlap(far, near)
    for number in range(2 * worker + 2):  # 6: backwards of both in turn, the later half in parts
        stage = near if number % 2 else far
        turns.add(Op.BACKWARD_INPUT if number > worker else Op.BACKWARD, stage)
    for _ in range(behind):  # 7: parts for the weights, and backwards of the near stage
        turns.add_weights()
        turns.add(Op.BACKWARD_INPUT, near)
    for _ in range(worker + 1):  # 8: the rest of the parts for the weights
        turns.add_weights()
    return turns
