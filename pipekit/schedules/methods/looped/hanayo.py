"""Hanayo: 1F1B in waves, each worker with a stage on the way there and back (Liu et al., 2023)."""

from pipekit.schedules.errors import ScheduleError
from pipekit.schedules.flushed import Pass, flushed
from pipekit.schedules.methods.arguments import require_positive
from pipekit.schedules.ops import Op
from pipekit.schedules.schedule import Schedule


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
            f"{stages} stages are no whole number of waves over {workers} workers: use a multiple "
            f"of {2 * workers}"
        )
    home = [*range(workers), *reversed(range(workers))] * (stages // (2 * workers))
    return Schedule(*flushed("Hanayo", _in_time(home, workers, microbatches)))


def _in_time(home: list[int], workers: int, microbatches: int) -> list[list[Pass]]:
    """Return every worker's passes, as they come slot by slot; ``home`` has each stage's worker."""
    last, admitted = len(home) - 1, 0
    ready: list[set[Pass]] = [set() for _ in range(workers)]
    rows: list[list[Pass]] = [[] for _ in range(workers)]
    running: list[Pass] = []
    finished = 0
    while finished < microbatches:
        for op, stage, k in running:
            if op is Op.FORWARD and stage < last:
                ready[home[stage + 1]].add((op, stage + 1, k))
            elif op is Op.FORWARD or stage:
                behind = stage if op is Op.FORWARD else stage - 1
                ready[home[behind]].add((Op.BACKWARD, behind, k))
            else:
                finished += 1
        running = []
        for k in range(admitted, min(finished + workers, microbatches)):
            ready[0].add((Op.FORWARD, 0, k))
            admitted += 1
        for worker, able in enumerate(ready):
            if able:
                chosen = max(able, key=lambda each: (each[0] is Op.BACKWARD, -each[2], each[1]))
                able.remove(chosen)
                rows[worker].append(chosen)
                running.append(chosen)
    return rows
