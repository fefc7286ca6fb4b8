"""Tables of users with more than passes and updates, made from tables without."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from pipekit.schedules import LOAD, OFFLOAD, Op, Schedule, Task
from pipekit.schedules.schedule import Pass

AWAY_AND_BACK = (OFFLOAD, LOAD)


def to(partner: int) -> tuple[Op, Op]:
    """A move to a partner, and back."""
    return OFFLOAD.to(partner), LOAD.to(partner)


def fill_and_drain(
    stages: int, microbatches: int, offloaded: Iterable[int] = (), ops: Sequence[Op] = AWAY_AND_BACK
) -> Schedule:
    """GPipe without end, whose first worker moves some microbatches right behind their forward."""
    away, back = ops

    def worker(stage: int) -> Iterator[Pass]:
        moved = {*offloaded} if stage == 0 else set()
        for k in range(microbatches):
            yield Op.FORWARD, stage, k
            if k in moved:
                yield away, stage, k
        for k in range(microbatches):
            if k in moved:
                yield back, stage, k
            yield Op.BACKWARD, stage, k

    return Schedule.one_batch("fill and drain", map(worker, range(stages))).repeat()


def with_tasks(
    schedule: Schedule, stage: int, microbatch: int, ops: Sequence[Op], places: Sequence[float]
) -> Schedule:
    """A finite schedule with ops of a microbatch between its forward (0) and its backward (1)."""
    head = [[*tasks] for tasks in schedule.head]
    for tasks in head:
        own = [n for n, task in enumerate(tasks) if task[1:3] == (stage, microbatch)]
        passes = [n for n in own if tasks[n].op.is_pass]
        if not passes:
            continue
        first, last = passes[0], next(n for n in passes if tasks[n].op.is_backward)
        version = tasks[first].version
        for op, place in reversed([*zip(ops, sorted(places), strict=True)]):
            at = first + 1 + int(place * (last - first - 1))
            tasks.insert(at, Task(op, stage, microbatch, version))
    return replace(schedule, head=tuple(map(tuple, head)))
