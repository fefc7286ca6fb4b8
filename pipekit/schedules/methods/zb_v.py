"""ZB-V: no bubble in a worker's span within 1F1B's memory (Qi et al., 2023, section 6)."""

from pipekit.schedules.methods.flushed import flushed
from pipekit.schedules.methods.phases import Turns, v_stages, v_workers
from pipekit.schedules.ops import Op
from pipekit.schedules.schedule import Pass, Schedule


def zb_v(stages: int, microbatches: int) -> Schedule:
    """Return ZB-V's schedule: every microbatch of batch ``t`` reads version ``t``.

    Worker ``w`` of ``p`` has the stages ``w`` and ``2 p - 1 - w``, a V, so that a microbatch's
    backward begins where its forward ended and every worker is at work early (Zero Bubble Pipeline
    Parallelism, section 6).  With passes that take equally long no worker idles in its span, and
    each has at most ``2 p`` passes' activations, as much as ``p`` microbatches of 1F1B.

    The order is that of ``torch.distributed.pipelining``'s ``ScheduleZBVZeroBubble``, also for
    fewer microbatches than fill the pipeline.  (The paper's own code searches an order for
    measured costs, greedily.)

    Args:
        stages, microbatches: how many stages, two a worker, and microbatches a batch.
    """
    workers = v_workers(stages, microbatches, "ZB-V", "zb_h1")
    each = (_passes(worker, workers, microbatches) for worker in range(workers))
    return flushed("ZB-V", each)


def _passes(worker: int, workers: int, microbatches: int) -> list[Pass]:
    down, back = v_stages(worker, workers)
    behind = workers - worker
    filling = max(2 * workers - 1, microbatches)  # fewer leave some of these passes out
    turns = Turns()
    # warm-up: what fills the time until the first microbatch comes back
    for _ in range(2 * behind - 1):
        turns.add(Op.FORWARD, down)
    for _ in range(worker):
        turns.add(Op.FORWARD, back, down)
    for _ in range(behind):
        turns.add(Op.FORWARD, back)
        turns.add_split(back)
    # steady
    while turns.count(Op.FORWARD, back) < filling:
        if turns.count(Op.FORWARD, down) < filling:
            turns.add(Op.FORWARD, down)
        turns.add_split(down)
        turns.add(Op.FORWARD, back)
        turns.add_split(back)
    # drain: parts for the input first, of which others wait
    for _ in range(worker):
        turns.add(Op.BACKWARD_INPUT, down, back)
    for _ in range(behind):
        turns.add_split(down)
    for stage in (back, down):
        while turns.count(Op.BACKWARD_WEIGHT, stage) < filling:
            turns.add(Op.BACKWARD_WEIGHT, stage)
    return [each for each in turns.passes if each[2] < microbatches]
