"""Hanayo: 1F1B in waves, each worker with a stage on the way there and back (Liu et al., 2023)."""

import math

from pipekit.schedules.list_scheduler import Policy, choose, in_slots
from pipekit.schedules.methods.flushed import flushed, require_positive
from pipekit.schedules.ops import Op
from pipekit.schedules.schedule import Schedule
from pipekit.schedules.task import ScheduleError


def hanayo(stages: int, microbatches: int, *, workers: int) -> Schedule:
    """Return Hanayo's schedule: every microbatch of batch ``t`` reads version ``t``.

    The stages go down the workers and back, once for each wave: with ``p`` workers and W waves
    worker ``w`` has the stages ``w``, ``2 p - 1 - w``, ``2 p + w``, ... ``2 W`` of them (Hanayo:
    Harnessing Wave-like Pipeline Parallelism, SC '23, arXiv 2308.15762).  It is Chimera without the
    second copy of the weights: where that sends microbatches from both ends, here the same ones
    come back.

    The paper draws its order and gives no rule for it.  Here a free worker takes, of what is ready,
    a backward before a forward, and of each kind the earliest microbatch's, the last of its stages
    first; a microbatch begins when fewer than ``p`` are on their way, so that no worker keeps more
    activations than 1F1B's first; and each pass takes one slot.

    Args:
        stages: how many stages, ``2 W`` a worker.
        microbatches: microbatches in each batch.
        workers: how many workers share the stages.

    Raises:
        ScheduleError: a count is below 1, or the stages are no whole number of waves.
    """
    require_positive(stages=stages, microbatches=microbatches, workers=workers)
    if stages % (2 * workers):
        raise ScheduleError(
            f"{stages} stages are not a whole number of waves over {workers} workers: use a "
            "multiple "
            f"of {2 * workers}"
        )
    homes = [*range(workers), *reversed(range(workers))] * (stages // (2 * workers))
    policy = Policy(
        depth=(workers, *[math.inf] * (stages - 1)),
        waiting=(0,) * workers,
        patience=(0,) * workers,
        forwards_first=(False,) * workers,
    )
    rows = choose(in_slots(homes, microbatches), policy)
    # A backward stands in its two parts there, the second of which takes no time.
    whole = {Op.FORWARD: Op.FORWARD, Op.BACKWARD_INPUT: Op.BACKWARD}
    each = ([(whole[op], stage, k) for op, stage, k in row if op in whole] for row in rows)
    return flushed("Hanayo", each)
