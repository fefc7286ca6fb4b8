"""Looped breadth-first: several stages a worker, a whole batch through each in turn."""

from pipekit.schedules.flushed import flushed
from pipekit.schedules.methods.arguments import require_positive
from pipekit.schedules.methods.looped.interleaved import require_loop
from pipekit.schedules.ops import Op
from pipekit.schedules.schedule import Schedule


def looped_bfs(stages: int, microbatches: int, *, workers: int) -> Schedule:
    """Return the schedule: every microbatch of batch ``t`` reads version ``t``.

    Worker ``w`` has the stages ``w``, ``w + workers``, ... as in interleaved 1F1B, and runs the
    forwards of all microbatches through the first of them, then through the next, and so on; then
    the backwards, last stage first (Lamy-Poirier, Breadth-First Pipeline Parallelism, MLSys 2023,
    arXiv 2211.05953).  So a stage's weights are needed in one piece of time, and all of its
    gradients come early.  The bubble is that of interleaved 1F1B; all activations are kept.

    ``torch.distributed.pipelining`` runs the backwards of a stage in reversed order, which idles no
    less, and sums gradients in that order.

    Args:
        stages: how many stages; a multiple of ``workers``, at least twice as many.
        microbatches: microbatches in each batch.
        workers: how many workers share the stages.

    Raises:
        ScheduleError: a count is below 1, or the workers cannot share the stages equally.
    """
    require_loop(stages, workers, "looped", "gpipe")
    require_positive(microbatches=microbatches)

    def passes(own: range) -> list[tuple[Op, int, int]]:
        orders = ((Op.FORWARD, own), (Op.BACKWARD, own[::-1]))
        return [(op, s, k) for op, order in orders for s in order for k in range(microbatches)]

    return Schedule(
        *flushed(
            "looped breadth-first",
            (passes(range(worker, stages, workers)) for worker in range(workers)),
        )
    )
