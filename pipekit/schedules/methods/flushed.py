"""Batches one after the other, written down phase by phase: what methods with a flush share."""

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import replace
from numbers import Integral

from pipekit.schedules.ops import Op
from pipekit.schedules.schedule import Pass, Schedule
from pipekit.schedules.task import ScheduleError, Task, Tasks, require_room


def require_positive(**counts: int) -> None:
    """Raise ScheduleError for the first count that is not an integer of at least 1."""
    for name, count in counts.items():
        if not isinstance(count, Integral) or count < 1:
            raise ScheduleError(f"{name} must be a whole number of at least 1, not {count!r}")
    named = " x ".join(f"{count:,} {name}" for name, count in counts.items())
    require_room(named, math.prod(counts.values()))


def flushed(
    name: str,
    workers: Iterable[Iterable[Pass]],
    overlaps: Collection[tuple[Pass, Pass]] = (),
) -> Schedule:
    """Return the schedule without end of such batches; those of batch ``t`` read version ``t``.

    The arguments are those of :meth:`.Schedule.one_batch`: ``name``, ``workers``, ``overlaps``.
    """
    return Schedule.one_batch(name, workers, overlaps).repeat()


More = Callable[[Tasks, Collection[Task]], Iterable[tuple[int, Task]]]
"""Returns tasks to be put into a worker's list, each with the place there that it comes before;
given are the list, and the tasks that run together with the one before."""


def inserted(schedule: Schedule, more: More, name: str, stages: Collection[int] = ()) -> Schedule:
    """Return a schedule of whole batches with further tasks in it, under another name.

    Raises ScheduleError unless the batches end with a flush, and it has the ``stages`` concerned.
    """
    if others := {*stages}.difference(range(schedule.stages)):
        raise ScheduleError(
            f"{schedule.title} has stages 0 to {schedule.stages - 1}, and not {min(others)}"
        )
    endless = schedule if schedule.is_endless else schedule.repeat()
    if not endless.is_closed:
        raise ScheduleError(
            f"{schedule.title} has no whole batches to change: use a method that flushes"
        )

    second = {other for _, other in schedule.overlaps}

    def change(tasks: Tasks) -> Iterator[Task]:
        before = defaultdict[int, list[Task]](list)
        for place, task in more(tasks, second):
            before[place].append(task)
        for place, task in enumerate(tasks):
            yield from (*before[place], task)
        yield from before[len(tasks)]

    lists = tuple(tuple(change(tasks)) for tasks in endless.period)
    made = replace(endless, name=name, period=lists)
    return made if schedule.is_endless else replace(made, head=lists, period=())


_COUNTED = {
    Op.FORWARD: (Op.FORWARD,),
    Op.BACKWARD: (Op.BACKWARD_INPUT, Op.BACKWARD_WEIGHT),
    Op.BACKWARD_INPUT: (Op.BACKWARD_INPUT,),
    Op.BACKWARD_WEIGHT: (Op.BACKWARD_WEIGHT,),
}
"""What each op counts as: a whole backward as both its parts."""


class Turns:
    """Passes in order, in which each stage takes the microbatches in turn.

    Attributes:
        passes: those written down so far.
        overlaps: of these, forwards and backwards that run together.
    """

    def __init__(self) -> None:
        self.passes: list[Pass] = []
        self.overlaps: list[tuple[Pass, Pass]] = []
        self._done: Counter[tuple[Op, int]] = Counter()
        self._waiting: list[int] = []  # stages, in the order of their parts for the input

    def count(self, op: Op, stage: int) -> int:
        """Return how many microbatches have had an op on a stage, other than a whole backward."""
        return self._done[op, stage]

    def add(self, op: Op, *stages: int) -> None:
        """Write down an op for the next microbatch, on each of some stages."""
        for stage in stages:
            counted = _COUNTED[op]
            self.passes.append((op, stage, self._done[counted[0], stage]))
            for each in counted:
                self._done[each, stage] += 1
            if op is Op.BACKWARD_INPUT:
                self._waiting.append(stage)
            elif op is Op.BACKWARD_WEIGHT:
                self._waiting.remove(stage)

    def add_split(self, stage: int) -> None:
        """Write down both parts of a backward; the one for the weights may be an older one's."""
        self.add(Op.BACKWARD_INPUT, stage)
        self.add(Op.BACKWARD_WEIGHT, stage)

    def add_weights(self) -> None:
        """Write down the part for the weights that has waited longest, if there is any."""
        if self._waiting:
            self.add(Op.BACKWARD_WEIGHT, self._waiting[0])

    def add_overlap(self, forward: int, backward: int) -> None:
        """Write down one stage's forward and another's whole backward, which run together."""
        self.add(Op.FORWARD, forward)
        self.add(Op.BACKWARD, backward)
        self.overlaps.append((self.passes[-2], self.passes[-1]))


def v_workers(stages: int, microbatches: int, method: str, straight: str) -> int:
    """Return how many workers share the stages, two each; else name the ``straight`` method."""
    require_positive(stages=stages, microbatches=microbatches)
    if stages % 2:
        raise ScheduleError(
            f"{method} has two stages a worker: use an even number of stages, not {stages} "
            f"(one stage a worker is {straight})"
        )
    return stages // 2


def v_stages(worker: int, workers: int) -> tuple[int, int]:
    """Return a worker's stages: the last worker has two in a row, and the first the ends."""
    return worker, 2 * workers - 1 - worker
