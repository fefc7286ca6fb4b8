"""Without flushes: PipeDream, an update a minibatch (sections 3.3 and 3.4), PACI, and ASP."""

from collections.abc import Iterator, Sequence
from itertools import accumulate
from math import lcm
from numbers import Integral

from pipekit.schedules.methods.flushed import require_positive
from pipekit.schedules.methods.one_f_one_b import depths_of, without_end
from pipekit.schedules.ops import Op
from pipekit.schedules.schedule import Schedule
from pipekit.schedules.task import ScheduleError, Task


def pipedream(
    stages: int | Sequence[int],
    stashing: bool = True,
    vertical_sync: bool = False,
    in_flight: Sequence[int] | None = None,
) -> Schedule:
    """Return PipeDream's schedule, 1F1B-RR.

    Replica ``j`` of a stage on ``r`` workers has every minibatch ``k`` with ``k mod r = j``
    (section 3.3).  The gradients of ``r`` minibatches in a row, one on each replica, are averaged
    for an update, as in data parallelism (section 2.1).

    Which weights minibatch ``k`` sees on stage ``s`` of ``n``, without replicas (all from 0;
    version = updates made):

    - weight stashing: ``k - (n - 1 - s)``, the newest there is when its forward runs, for forward
      and backward: w(t+1) = w(t) - nu * grad f(w1(t-n+1), w2(t-n+2), ..., wn(t));
    - vertical sync: ``k - (n - 1)`` on all stages: grad f(w1(t-n+1), ..., wn(t-n+1));
    - no stashing: the forward as with stashing, the backward the newest, ``k``: no gradient of
      ``f`` at any weights.  For study.

    A version below 0 is 0.  With replicas likewise; under vertical sync a stage then reads its
    newest version that has seen no minibatch which the input stage's has not.

    Args:
        stages: how many stages, one worker each; or on how many workers each stage is replicated,
            as in Table 1: ``[2, 1, 1]``.
        stashing: whether a backward reads the weights of its forward.
        vertical_sync: whether all stages read the same version for a minibatch.
        in_flight: minibatches in flight on each replica of each stage; by default
            :func:`optimal_in_flight`, in which links that take time are not counted.  Where stages
            take equally long, one more for each link behind a stage hides messages that are no
            longer than a forward, ``[7, 5, 3, 1]`` on four stages; two more, ``[10, 7, 4, 1]``,
            longer ones.  Counts in between can idle more than smaller ones, since passes alternate
            (docs/methods.md).  Each costs a version, and older weights.

    Raises:
        ScheduleError: a count is below 1, ``in_flight`` does not fit the stages, or vertical sync
            is asked for without stashing.
    """
    replicas = [1] * stages if isinstance(stages, (int, Integral)) else list(stages)
    require_positive(stages=len(replicas))
    for width in replicas:
        require_positive(replicas=width)
    if vertical_sync and not stashing:
        raise ScheduleError("vertical sync needs weight stashing: leave stashing=True")
    in_flight = optimal_in_flight(replicas) if in_flight is None else in_flight
    in_flight = depths_of(len(replicas), in_flight)

    def version(stage: int, k: int) -> int:
        """Return how many updates a stage has seen when minibatch ``k`` comes forward."""
        if not vertical_sync:
            return max(0, k // replicas[stage] - in_flight[stage] + 1)
        admitted = max(0, k // replicas[0] - in_flight[0] + 1)
        return admitted * replicas[0] // replicas[stage]

    def worker(stage: int, replica: int) -> tuple[tuple[Task, ...], tuple[Task, ...]]:
        width = replicas[stage]

        def tasks(op: Op, place: int) -> Iterator[Task]:
            k = replica + place * width
            reads = version(stage, k) if op is Op.FORWARD or stashing else place
            yield Task(op, stage, k, reads)
            if op is Op.BACKWARD:
                yield Task(Op.UPDATE, stage, (place + 1) * width - 1, place + 1)

        # Versions grow once the stage that decides has as many minibatches in flight as it may.
        decides = 0 if vertical_sync else stage
        first = (in_flight[decides] - 1) * replicas[decides]
        settled = -(-first // width) if stashing else 0
        return without_end(tasks, in_flight[stage], settled, lcm(*replicas) // width)

    variant = " + vertical sync" if vertical_sync else "" if stashing else " without stashing"
    replicated = max(replicas) > 1
    workers = [worker(stage, j) for stage, width in enumerate(replicas) for j in range(width)]
    head, period = zip(*workers, strict=True)
    return Schedule(
        head,
        "PipeDream" + (" " + "-".join(map(str, replicas)) if replicated else "") + variant,
        stashing,
        batch_size=1 if replicated else None,
        period=period,
    )


def paci(stages: int, microbatches: int) -> Schedule:
    """Return PACI's schedule: each stage sums m microbatches and then updates in place.

    1F1B without flushes, stashing or prediction (Elam et al., "Breaking the Bubble: Asynchronous
    Pipeline Parallel Training with Bounded Weight Inconsistency", arXiv 2606.07881, section 3).
    Every pass reads the newest weights: microbatch ``k`` (from 0) comes forward on stage ``s`` of
    ``n`` (from 0) when ``k - (n - s) + 1`` have come back, and reads version
    ``max(0, k - (n - s) + 1) // m``; its backward reads ``k // m``, at most ``ceil((n - 1) / m)``
    updates later, the paper's bound.  Each of the ``stages`` has a worker, each batch of the data m
    ``microbatches``.
    """
    require_positive(stages=stages, microbatches=microbatches)

    def worker(stage: int) -> tuple[tuple[Task, ...], tuple[Task, ...]]:
        in_flight = stages - stage

        def tasks(op: Op, k: int) -> Iterator[Task]:
            seen = k if op is Op.BACKWARD else max(0, k - in_flight + 1)
            yield Task(op, stage, k, seen // microbatches)
            if op is Op.BACKWARD and (k + 1) % microbatches == 0:
                yield Task(Op.UPDATE, stage, k, k // microbatches + 1)

        return without_end(tasks, in_flight, settled=0, period=microbatches)

    head, period = zip(*map(worker, range(stages)), strict=True)
    return Schedule(head, "PACI", stashing=False, period=period)


def optimal_in_flight(replicas: Sequence[int]) -> list[int]:
    """Return how many minibatches each replica of each stage has in flight.

    For the input stage this is NOAM = ceil(workers / workers of the input stage) (section 3.2);
    a later stage counts the workers from it on.
    """
    from_here = [*accumulate(reversed(replicas))][::-1]
    return [-(-workers // width) for workers, width in zip(from_here, replicas, strict=True)]


def asp(workers: int, delay: int | None = None) -> Schedule:
    """Return asynchronous data parallelism as it goes if all ``workers`` are equally fast.

    Minibatch ``k`` is on worker ``k mod workers``.  Its gradient, at the weights after ``k -
    delay`` updates, makes update ``k + 1`` alone, on every worker's copy of the weights.  The
    ``delay`` is at least ``workers - 1``, which is what a network without delay leads to;
    ``2 * workers - 1`` gives gradients a minibatch's time to get to the others.

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
