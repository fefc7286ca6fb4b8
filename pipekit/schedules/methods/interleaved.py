"""Interleaved 1F1B: several stages a worker, for a shorter bubble (Narayanan et al., 2021)."""

from collections.abc import Iterator

import numpy as np

from pipekit.schedules.errors import ScheduleError
from pipekit.schedules.methods.arguments import require_positive, split_batches
from pipekit.schedules.methods.one_f_one_b import alternate
from pipekit.schedules.ops import Op
from pipekit.schedules.schedule import Schedule
from pipekit.schedules.task import Task


def interleaved(stages: int, microbatches: int, batches: int = 1, *, workers: int) -> Schedule:
    """Return interleaved 1F1B's schedule: every microbatch of batch ``t`` reads version ``t``.

    Worker ``w`` has the stages ``w``, ``w + workers``, ``w + 2 workers``, ... (Efficient
    Large-Scale Language Model Training on GPU Clusters Using Megatron-LM, SC '21, section 2.2 and
    Figure 4).  With v of them and as many microbatches as workers or more, the bubble is 1 / v of
    :func:`flush`'s on these workers; in return each microbatch crosses v times as many links, and
    more of them are in flight.

    A worker runs some microbatches through its first stage, then the same ones through its next,
    and so on.  There these are ``workers`` at a time, which must divide ``microbatches``; here any
    number is cut into even rounds of so many or more.

    Args:
        stages: how many stages; a multiple of ``workers``, at least twice as many.
        microbatches: microbatches in each batch.
        batches: how many batches, each ended by a flush and an update.
        workers: how many workers share the stages.

    Raises:
        ScheduleError: a count is below 1, or the workers cannot share the stages equally.
    """
    require_positive(stages=stages, microbatches=microbatches, batches=batches, workers=workers)
    if stages % workers or stages == workers:
        raise ScheduleError(
            f"{stages} stages cannot be interleaved on {workers} workers: use a multiple of "
            f"{workers} from {2 * workers} (one stage a worker is flush)"
        )

    def worker(number: int) -> list[Task]:
        tasks = []
        for t, batch in enumerate(split_batches(microbatches, batches)):
            own = range(number, stages, workers)
            tasks += [Task(op, stage, k, t) for op, stage, k in _passes(own, batch, workers)]
            tasks += [Task(Op.UPDATE, stage, batch[-1], t + 1) for stage in reversed(own)]
        return tasks

    return Schedule(tuple(tuple(worker(w)) for w in range(workers)), "interleaved 1F1B")


def _passes(own: range, batch: range, workers: int) -> Iterator[tuple[Op, int, int]]:
    """Yield ``(op, stage, microbatch)`` as a worker that has the stages ``own`` runs a batch."""
    rounds = _rounds(batch, workers)
    order = {
        Op.FORWARD: [(stage, k) for some in rounds for stage in own for k in some],
        Op.BACKWARD: [(stage, k) for some in rounds for stage in reversed(own) for k in some],
    }
    # To the last stage a round passes all other stages of a worker; beyond that each worker behind
    # needs one forward to have work at once, and one more so that messages have time to arrive.
    behind = workers - 1 - own[0]
    in_flight = (len(own) - 1) * len(rounds[0]) + 2 * behind + 1
    for op, position in alternate(range(len(own) * len(batch)), in_flight):
        yield op, *order[op][position]


def _rounds(batch: range, workers: int) -> list[list[int]]:
    """Return a batch in parts of ``workers`` microbatches or more, the larger ones first."""
    parts = np.array_split(batch, max(1, len(batch) // workers))
    return [part.tolist() for part in parts]
