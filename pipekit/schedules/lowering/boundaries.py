"""Where a run can be taken up again, although its pipeline never drains.

After a boundary the tasks of later microbatches are done again, also those that had been done
before it; so a boundary is a cut through the data and not through the workers' lists.
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from pipekit.schedules.lowering.steps import Step, Steps
from pipekit.schedules.ops import Op
from pipekit.schedules.schedule import Schedule
from pipekit.schedules.task import Task


class Boundary(NamedTuple):
    """A cut between two batches."""

    batches: int  # those before it
    microbatches: int  # theirs
    # for each stage, the weights that they have made: updates before the boundary
    versions: tuple[int, ...]


def boundaries(schedule: Schedule, every: int | None = None) -> tuple[Boundary, ...]:
    """Return where a run can be taken up again, in order; the last is its end.

    Any boundary between two batches will do at which

    - no update, on any stage, sums microbatches of both sides (where stages on 2 and 3 workers
      average 2 and 3 minibatches, every sixth boundary is such a one);
    - no worker runs a stage's forward of a later batch before one of an earlier batch, so that
      there is a moment at which running statistics have counted the batches before it and no other.

    Of these, ``every`` takes the first at or after every so many batches; None: only the end.
    """
    ends = [[summed.stop for summed in stage] for stage in schedule.updates]
    crossed, last = _crossed(schedule), len(schedule.batches)
    found: list[Boundary] = []
    every = every or last
    wanted = every
    for batches, batch in enumerate(schedule.batches, start=1):
        cut = batch.stop
        versions = tuple(bisect_right(stage, cut) for stage in ends)
        whole = all(v and stage[v - 1] == cut for stage, v in zip(ends, versions, strict=True))
        if batches == last or (batches >= wanted and whole and cut not in crossed):
            found.append(Boundary(batches, cut, versions))
            wanted = (batches // every + 1) * every
    return tuple(found)


def older_versions(tasks: Iterable[Task], cuts: Sequence[Boundary]) -> list[dict[int, set[int]]]:
    """Return for each boundary the versions older than its newest that are read again after it."""
    read: list[dict[int, set[int]]] = [defaultdict(set) for _ in cuts]
    firsts = [cut.microbatches for cut in cuts]
    newest = [*zip(*(cut.versions for cut in cuts), strict=True)]
    for op, stage, microbatch, version in tasks:
        if op.is_pass:
            first, stop = bisect_right(newest[stage], version), bisect_right(firsts, microbatch)
            for number in range(first, stop):
                read[number][stage].add(version)
    return read


def steps_after(steps: Steps, boundary: Boundary) -> Steps:
    """Return what a worker of a run that is taken up again does.

    Of the tasks before the boundary, those that add gradients and updates stay in their places,
    without messages: they tell where the weight versions and sums of gradients lie.
    """

    def left(step: Step) -> Step | None:
        if step.task.microbatch >= boundary.microbatches:
            return step
        op = step.task.op
        stays = op.adds_gradient or not op.is_pass
        return step._replace(receives=(), sends=()) if stays else None

    return Steps(tuple(filter(None, map(left, steps.head))))


def _crossed(schedule: Schedule) -> set[int]:
    """Return the cuts of which a worker does a later forward before an earlier one."""
    crossed: set[int] = set()
    for tasks in schedule.workers:
        highest: dict[int, int] = {}
        for op, stage, microbatch, _ in tasks:
            if op is Op.FORWARD:
                before = highest.get(stage, microbatch)
                crossed.update(range(microbatch + 1, before + 1))
                highest[stage] = max(before, microbatch)
    return crossed
