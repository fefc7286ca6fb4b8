"""Asynchronous data parallelism, ASP: nobody waits for anybody (PipeDream, sections 2.1, 5.2)."""

from collections.abc import Iterator

from pipekit.schedules.methods.flushed import require_positive
from pipekit.schedules.ops import Op
from pipekit.schedules.schedule import Schedule
from pipekit.schedules.task import ScheduleError, Task


def asp(workers: int, delay: int | None = None) -> Schedule:
    """Return asynchronous data parallelism as it goes if all workers are equally fast.

    Minibatch ``k`` is on worker ``k mod workers``; each is one microbatch, and one batch of the
    data.  Its gradient, at the weights after ``k - delay`` updates, makes update ``k + 1`` alone,
    on every worker's copy of the weights, in the order of the minibatches.

    Args:
        workers: how many, each with the whole model.
        delay: updates that a gradient comes late, at least ``workers - 1``, which is what a network
            without delay leads to; ``2 * workers - 1`` gives gradients a minibatch's time to get
            to the others.

    Raises:
        ScheduleError: a count is below 1, or the delay too short: a worker would have to wait.
    """
    require_positive(workers=workers)
    least = workers - 1
    delay = least if delay is None else delay
    if delay < least:
        raise ScheduleError(
            f"delay must be at least {least} for {workers} workers: shorter, they would wait for "
            f"one another"
        )

    def rounds(index: int, first: int, count: int) -> Iterator[Task]:
        for k in range(index + first * workers, index + (first + count) * workers, workers):
            seen, reads = max(0, k - workers - delay), max(0, k - delay)
            yield from (Task(Op.UPDATE, 0, v - 1, v) for v in range(seen + 1, reads + 1))
            yield from (Task(Op.FORWARD, 0, k, reads), Task(Op.BACKWARD, 0, k, reads))

    # From then on a round has as many updates as there are workers.
    settled, every = 1 + -(-delay // workers), range(workers)
    return Schedule(
        tuple(tuple(rounds(index, 0, settled)) for index in every),
        "ASP",
        batch_size=1,
        period=tuple(tuple(rounds(index, settled, 1)) for index in every),
    )
