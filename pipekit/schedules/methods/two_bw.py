"""PipeDream-2BW: 1F1B without flushes, two weight versions (section 3.1, Figure 2)."""

from collections.abc import Collection, Iterator, Sequence
from itertools import pairwise

from pipekit.schedules.methods.flushed import require_positive
from pipekit.schedules.methods.one_f_one_b import alternate, depths_of, without_end
from pipekit.schedules.ops import Op
from pipekit.schedules.schedule import Schedule
from pipekit.schedules.task import ScheduleError, Task


def two_bw(
    stages: int,
    microbatches: int,
    flush_after: Collection[int] = (),
    in_flight: Sequence[int] | None = None,
) -> Schedule:
    """Return 2BW's schedule: W(t+1) = W(t) - nu * grad f(W(t-1)).

    Microbatch ``k`` (from 1, as in the paper) reads version ``max(floor((k-1)/m) - 1, 0)`` on all
    stages, forward and backward.  After a batch (from 0) of ``flush_after`` the pipeline drains,
    and the next batch reads the newest weights: ``range(n)`` makes the first n updates and the next
    one synchronous, and ``(0, 1, 3, 7, 15)`` warms the delay up.  Each of the ``stages`` has a
    worker; an update sums m ``microbatches``, at least as many as stages; ``in_flight`` is as for
    :func:`.flush`, at most m.

    Raises:
        ScheduleError: a count is below 1, ``microbatches < stages``, or ``in_flight`` does not fit
            the stages or exceeds m.
    """
    require_positive(stages=stages, microbatches=microbatches)
    if microbatches < stages:
        raise ScheduleError(
            f"2BW needs at least as many microbatches a batch as stages: use microbatches >= "
            f"{stages} (not {microbatches}) or at most {microbatches} stages"
        )
    depths = depths_of(stages, in_flight)
    if max(depths) > microbatches:
        raise ScheduleError(
            f"2BW has at most a batch in flight: use microbatches >= {max(depths)} (not "
            f"{microbatches}) or in_flight of at most {microbatches}"
        )

    flushes = sorted({t + 1 for t in flush_after if t >= 0})
    since = max(flushes, default=0)  # the batch from which on there are no more

    def tasks(op: Op, stage: int, k: int, first: int) -> Iterator[Task]:
        """Yield a pass, and the update behind it, after a flush before the batch ``first``."""
        batch = k // microbatches
        yield Task(op, stage, k, max(batch - 1, first))
        if op is Op.BACKWARD and (k + 1) % microbatches == 0:
            yield Task(Op.UPDATE, stage, k, batch + 1)

    def flushed(stage: int) -> Iterator[Task]:
        for first, stop in pairwise([0, *flushes]):
            span = range(first * microbatches, stop * microbatches)
            for op, k in alternate(span, depths[stage]):
                yield from tasks(op, stage, k, first)

    def worker(stage: int) -> tuple[tuple[Task, ...], tuple[Task, ...]]:
        head, period = without_end(
            lambda op, k: tasks(op, stage, since * microbatches + k, since),
            in_flight=depths[stage],
            settled=microbatches,  # the first two batches read one version
            period=microbatches,
        )
        return (*flushed(stage), *head), period

    name = "PipeDream-2BW" + (f" with {len(flushes)} flushes" if flushes else "")
    head, period = zip(*map(worker, range(stages)), strict=True)
    return Schedule(head, name, period=period)
