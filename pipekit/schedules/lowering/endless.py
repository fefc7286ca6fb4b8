"""Tables without end: for streams, and for calls that go on where the last one ended.

Methods repeat themselves once their pipeline is full.  A worker's steps are then those of the
beginning, and after these a round of steps, again and again, in which every number has grown.  A
run does those of its own microbatches: whoever ends it at a batch has done what the table for so
many batches says, and the weight versions that later batches would read lie where they belong.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count, islice
from math import lcm
from typing import Any, NamedTuple

from pipekit.schedules.errors import ScheduleError
from pipekit.schedules.lowering.boundaries import boundaries, until
from pipekit.schedules.lowering.lower import Skips, Step, lower
from pipekit.schedules.lowering.sums import sum_order, sums
from pipekit.schedules.ops import OPS
from pipekit.schedules.repeated import Pattern
from pipekit.schedules.schedule import Schedule
from pipekit.schedules.task import Task


@dataclass(frozen=True)
class EndlessSteps(Pattern[Step]):
    """The steps of one worker, from a microbatch on, without end.

    Attributes:
        unit: those of the beginning, and then a round, which is repeated.
        head: how many are of the beginning.
        microbatches: by how many later each round is than the one before.
        versions: likewise.
        begin: the first microbatch that is wanted.
    """

    unit: tuple[Step, ...]
    head: int
    microbatches: int
    versions: int
    begin: int = 0

    def like(self, unit: Sequence[Step]) -> "EndlessSteps":
        """Return other steps that are repeated likewise."""
        return replace(self, unit=tuple(unit))

    def until(self, end: Callable[[], int]) -> Iterator[Step]:
        """Yield the steps of the microbatches before one that may become known meanwhile."""
        for step in self.unit[: self.head]:
            if self.begin <= step.task.microbatch < end():
                yield step
        repeated = self.unit[self.head :]
        numbers = [step.task.microbatch for step in repeated]
        if not numbers:
            return
        first, last = min(numbers), max(numbers)
        for time in count(max(0, (self.begin - last) // self.microbatches)):
            later = time * self.microbatches
            if first + later >= end():
                return
            for step, number in zip(repeated, numbers, strict=True):
                if self.begin <= number + later < end():
                    yield step.later(later, time * self.versions)

    def __iter__(self) -> Iterator[Step]:
        return self.until(lambda: sys.maxsize)

    def __len__(self) -> int:
        return sys.maxsize if self.unit else 0

    def __getitem__(self, place: Any) -> Any:
        return next(islice(self, place, None))


Turn = tuple[int, int]
"""A sum over several workers: the stage and the update."""


@dataclass(frozen=True)
class EndlessTurns:
    """Sums over several workers, in an order for all of them (:func:`sum_order`), without end.

    Attributes:
        unit: those of the beginning, and then a round's, which are repeated.
        head: how many are of the beginning.
        updates: of each stage in a round.
        skip: rounds that are not wanted.
    """

    unit: tuple[Turn, ...]
    head: int
    updates: tuple[int, ...]
    skip: int = 0

    def __iter__(self) -> Iterator[Turn]:
        beginning, repeated = self.unit[: self.head], self.unit[self.head :]
        if not repeated:
            return
        # A round's come while some of the rounds before it are still to come.
        done = [(self.skip * self.updates[s] - update) // self.updates[s] for s, update in repeated]
        first = max(0, min(done))
        if not first:
            yield from beginning
        for time in count(first):
            for stage, update in repeated:
                yield stage, update + time * self.updates[stage]


class Endless(NamedTuple):
    """A table without end.

    Attributes:
        steps: of every worker.
        whole: the beginning in which they were found.
        round: a run may end after so many batches, or a multiple: updates of stages on several
            workers may average several.
        turns: the sums over several workers, in the order of all of them.
    """

    steps: tuple[EndlessSteps, ...]
    whole: Schedule
    round: int
    turns: EndlessTurns


def endless(
    schedule: Callable[[int], Schedule],
    skips: Skips = (),
    ties: Skips = (),
    joint_updates: bool = False,
    goes_on: bool = False,
) -> Endless:
    """Return a table for batches without end.

    Args:
        schedule: returns the table for a number of batches.
        skips: skip connections between stages.
        ties: stages that share a weight, see :func:`lower`.
        joint_updates: whether the updates of a batch wait for one another on all stages.
        goes_on: whether weights that are read behind the end of a run are kept for the next one.

    Raises:
        ScheduleError: the tables do not repeat themselves, or one for fewer batches is not the
            beginning of one for more; the message says what that means for training.
    """
    some = schedule(1)
    batch_size = len(some.batches[0])
    beginning = schedule(4 * max(some.stages, len(some.workers)) + 4)
    # Every update of a stage averages as many batches; all stages' come round together.
    batches = [stage[0].batches for stage in sums(beginning)]
    round_ = lcm(*batches)
    size = round_ * batch_size
    cut_every = size if goes_on else None
    # A batch is under way for as long as its version may be kept, and fills as many slots at most.
    first = lower(beginning, skips, ties, cut_every)
    slots = 1 + max(step.slot for steps in first for step in steps)
    full = 2 * max(slots, some.stages)
    whole = schedule(round_ * (2 * full + 2 * slots))
    _require_beginnings(schedule, whole, size, range(1, full + slots + 1, slots))
    lowered = lower(whole, skips, ties, cut_every)
    updates = [round_ // each for each in batches]
    steps = tuple(_repeated(each, full, slots, size, updates) for each in lowered)
    return Endless(steps, whole, round_, _turns(sum_order(whole, joint_updates), full, updates))


def _require_beginnings(
    schedule: Callable[[int], Schedule], whole: Schedule, size: int, counts: Sequence[int]
) -> None:
    """Raise ScheduleError unless a run may end after any round, as a shorter table does."""
    ends = {boundary.microbatches for boundary in boundaries(whole, every=1)}
    batches = len(whole.batches) * size // whole.microbatches  # of a round
    alike = all(len({*stage}) == 1 for stage in sums(whole))
    for rounds in counts:
        end = rounds * size
        beginning, short = until(whole, end).workers, schedule(rounds * batches).workers
        same = list(map(_parted, beginning)) == list(map(_parted, short))
        if not alike or not same or end not in ends:
            raise ScheduleError(
                f"{whole.title} has to know how many batches there are: its table for "
                f"{rounds * batches} is not the beginning of a longer one"
            )


def _parted(tasks: Sequence[Task]) -> tuple[list[Task], list[Task]]:
    """Return a worker's passes, and its updates: each pass names the version that it reads, so that
    it does not matter which passes an update comes before that do not read what it makes.
    """
    return (
        [task for task in tasks if OPS[task.op].is_pass],
        [task for task in tasks if not OPS[task.op].is_pass],
    )


def _repeated(
    steps: Sequence[Step], full: int, slots: int, size: int, updates: Sequence[int]
) -> EndlessSteps:
    """Return a worker's steps as a beginning and a pattern.

    The pattern begins with the first step of a round.  Its length is that in which the weight slots
    of the worker's stages come round.

    Args:
        steps: of a whole table.
        full: rounds after which the pipeline is full.
        slots: most weight slots of a stage.
        size: microbatches of a round.
        updates: of each stage in a round.

    Raises:
        ScheduleError: there is no such pattern.
    """
    steps = tuple(steps)
    begins: dict[int, int] = {}  # by round: where its first step stands
    for place, step in enumerate(steps):
        begins.setdefault(step.task.microbatch // size, place)
    grows = {updates[step.task.stage] for step in steps}
    for length in range(1, slots + 1) if len(grows) == 1 else ():
        first, second, third = (begins[full + times * length] for times in range(3))
        later = length * size, length * min(grows)
        if steps[second:third] == tuple(step.later(*later) for step in steps[first:second]):
            return EndlessSteps(steps[:second], first, *later)
    if steps:
        raise ScheduleError(
            f"the table does not repeat itself within {slots} rounds after {full}: say how many "
            f"batches there are, by their length or steps=..."
        )
    return EndlessSteps((), 0, size, 1)


def _turns(order: Sequence[Turn], full: int, updates: Sequence[int]) -> EndlessTurns:
    """Return the order of sums without end, given that of a table of more than twice ``full``."""
    in_round = sum(updates[stage] for stage in {stage for stage, _ in order})
    first = full * in_round
    shifted = tuple((stage, update + updates[stage]) for stage, update in order[:-in_round])
    if order and shifted[first : first + in_round] != order[first + in_round :][:in_round]:
        raise ScheduleError("the sums over several workers do not come in the same order each time")
    return EndlessTurns(tuple(order[: first + in_round]), first, tuple(updates))
