"""Interleaved 1F1B: several stages a worker, for a shorter bubble (Narayanan et al., 2021)."""

from collections.abc import Iterator

import numpy as np

from pipekit.schedules.errors import ScheduleError
from pipekit.schedules.flushed import Pass, flushed
from pipekit.schedules.methods.arguments import require_positive
from pipekit.schedules.methods.one_f_one_b import alternate
from pipekit.schedules.ops import Op
from pipekit.schedules.schedule import Schedule


def interleaved(stages: int, microbatches: int, *, workers: int) -> Schedule:
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
        workers: how many workers share the stages.

    Raises:
        ScheduleError: a count is below 1, or the workers cannot share the stages equally.
    """
    require_loop(stages, workers, "interleaved", "flush")
    require_positive(microbatches=microbatches)
    return Schedule(
        *flushed(
            "interleaved 1F1B",
            (
                # Each worker behind needs one forward to have work at once, and one more so that
                # messages have time to arrive.
                interleaved_passes(range(worker, stages, workers), microbatches, workers, ahead=2)
                for worker in range(workers)
            ),
        )
    )


def require_loop(stages: int, workers: int, method: str, straight: str) -> None:
    """Raise ScheduleError unless the workers have equally many stages in a loop, two or more.

    Args:
        stages: how many stages.
        workers: how many workers share them.
        method: what cannot be done otherwise.
        straight: the method for one stage a worker.
    """
    require_positive(stages=stages, workers=workers)
    if stages % workers or stages == workers:
        raise ScheduleError(
            f"{stages} stages cannot be {method} on {workers} workers: use a multiple of "
            f"{workers} from {2 * workers} (one stage a worker is {straight})"
        )


def interleaved_passes(
    own: range, microbatches: int, workers: int, *, ahead: int
) -> Iterator[Pass]:
    """Yield the passes of a batch on the worker that has the stages ``own``.

    Before it alternates, it runs all but one of its stages for a round of microbatches, and
    ``ahead`` forwards for each worker behind.
    """
    rounds = _rounds(microbatches, workers)
    order = {
        Op.FORWARD: [(stage, k) for some in rounds for stage in own for k in some],
        Op.BACKWARD: [(stage, k) for some in rounds for stage in reversed(own) for k in some],
    }
    behind = workers - 1 - own[0]
    in_flight = (len(own) - 1) * len(rounds[0]) + ahead * behind + 1
    for op, position in alternate(range(len(own) * microbatches), in_flight):
        yield op, *order[op][position]


def _rounds(microbatches: int, workers: int) -> list[list[int]]:
    """Return a batch in parts of ``workers`` microbatches or more, the larger ones first."""
    parts = np.array_split(range(microbatches), max(1, microbatches // workers))
    return [part.tolist() for part in parts]
