"""Asynchronous data parallelism, ASP: nobody waits for anybody (PipeDream, sections 2.1, 5.2)."""

from pipekit.schedules.errors import ScheduleError
from pipekit.schedules.methods.arguments import require_positive
from pipekit.schedules.ops import Op
from pipekit.schedules.schedule import Schedule
from pipekit.schedules.task import Task


def asp(workers: int, minibatches: int, delay: int | None = None) -> Schedule:
    """Return asynchronous data parallelism as it goes if all workers are equally fast.

    Minibatch ``k`` is on worker ``k mod workers``.  Its gradient, at the weights after
    ``k - delay`` updates, makes update ``k + 1`` alone, on every worker's copy of the weights, in
    the order of the minibatches.

    Args:
        workers: how many, each with the whole model.
        minibatches: how many; each is one microbatch, and one batch of the data.
        delay: updates that a gradient comes late, at least ``workers - 1``, which is what a network
            without delay leads to; ``2 * workers - 1`` gives gradients a minibatch's time to get
            to the others.

    Raises:
        ScheduleError: a count is below 1, or the delay too short: a worker would have to wait.
    """
    require_positive(workers=workers, minibatches=minibatches)
    least = workers - 1
    delay = least if delay is None else delay
    if delay < least:
        raise ScheduleError(
            f"delay must be at least {least} for {workers} workers: shorter, they would wait for "
            f"one another"
        )

    def worker(index: int) -> list[Task]:
        tasks: list[Task] = []
        newest = 0
        for k in range(index, minibatches, workers):
            reads = max(0, k - delay)
            tasks += _updates(newest, reads)
            newest = reads
            tasks += [Task(Op.FORWARD, 0, k, reads), Task(Op.BACKWARD, 0, k, reads)]
        return tasks + _updates(newest, minibatches) if tasks else tasks

    return Schedule(tuple(tuple(worker(w)) for w in range(workers)), "ASP", batch_size=1)


def _updates(newest: int, wanted: int) -> list[Task]:
    return [Task(Op.UPDATE, 0, v - 1, v) for v in range(newest + 1, wanted + 1)]
