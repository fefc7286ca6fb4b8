"""Where a run can be taken up again, although its pipeline never drains, and where it may end.

Such a boundary is a cut through the data and not through the workers' lists: after it the tasks of
later microbatches are done again, also those that had been done before it.
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from pipekit.schedules.lowering.steps import Step, Steps
from pipekit.schedules.ops import Op
from pipekit.schedules.schedule import Schedule, periods_under_way
from pipekit.schedules.task import Task


class Boundary(NamedTuple):
    """A cut between two batches."""

    batches: int  # those before it
    microbatches: int  # theirs
    # for each stage, the weights that they have made: updates before the boundary
    versions: tuple[int, ...]


START = Boundary(0, 0, ())
"""Where nothing has been done."""


def boundaries(schedule: Schedule, every: int | None = None) -> tuple[Boundary, ...]:
    """Return where a run can be taken up again, in order; the last is its end.

    Any boundary between two batches will do at which

    - no update, on any stage, sums microbatches of both sides (where stages on 2 and 3 workers
      average 2 and 3 minibatches, every sixth boundary is such a one);
    - no worker runs a stage's forward of a later batch before one of an earlier batch, so that
      running statistics have once counted the batches before it and no other.

    Of these, ``every`` takes the first at or after every so many batches; None: only the end.
    """
    ends = [[summed.stop for summed in stage] for stage in schedule.updates]
    crossed: set[int] = set()  # cuts of which a worker does a later forward before an earlier one
    for tasks in schedule.workers:
        highest: dict[int, int] = {}
        for op, stage, microbatch, _ in tasks:
            if op is Op.FORWARD:
                before = highest.get(stage, microbatch)
                crossed.update(range(microbatch + 1, before + 1))
                highest[stage] = max(before, microbatch)
    last = len(schedule.batches)
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

    Of the tasks before the boundary, those that add gradients and updates stay, without messages:
    they tell where the weight versions and sums of gradients lie.
    """

    def left(step: Step) -> Step | None:
        if step.task.microbatch >= boundary.microbatches:
            return step
        op = step.task.op
        stays = op.adds_gradient or not op.is_pass
        return step._replace(receives=(), sends=()) if stays else None

    return Steps(tuple(filter(None, map(left, steps.head))))


@dataclass(frozen=True)
class PossibleStops:
    """The batches before which a run may end.

    ``batches`` are these, as ranges of microbatches; they repeat after ``size`` microbatches (0:
    they do not); ``begin`` is the run's first microbatch.
    """

    batches: tuple[range, ...] = ()
    size: int = 0
    begin: int = 0

    def __contains__(self, microbatch: int) -> bool:
        return self.before(microbatch) == microbatch

    def before(self, microbatch: int) -> int | None:
        """Return the possible end before a failed microbatch's own batch, or None.

        An earlier end is no remedy: updates of some stages may have seen a batch in between.
        """
        first = microbatch - microbatch % self.size if self.size else 0
        place = bisect_right(self.batches, microbatch - first, key=lambda batch: batch.start)
        batch = self.batches[place - 1] if place else range(0)
        end = first + batch.start
        return end if microbatch - first in batch and end >= self.begin else None


def possible_stops(schedule: Schedule) -> PossibleStops:
    """Return where a run by a schedule may end early."""
    return schedule.remembered("possible stops", lambda: _possible_stops(schedule))


def _possible_stops(schedule: Schedule) -> PossibleStops:
    if not schedule.period:
        cuts = {0, *(boundary.microbatches for boundary in boundaries(schedule, every=1))}
        return PossibleStops(tuple(batch for batch in schedule.batches if batch.start in cuts))
    size = schedule.period_microbatches
    some = 1 if schedule.is_closed else 1 + periods_under_way(schedule)
    cuts = {0, *(b.microbatches for b in boundaries(schedule.before(some * size), every=1))}
    stops = schedule.batch_stops
    batches = map(range, (0, *stops), stops)
    found = (batch for batch in batches if cuts.issuperset(range(batch.start, some * size, size)))
    return PossibleStops(tuple(found), size)
