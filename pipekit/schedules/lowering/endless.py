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
from typing import Any

from pipekit.schedules.errors import ScheduleError
from pipekit.schedules.lowering.boundaries import boundaries, until
from pipekit.schedules.lowering.lower import Skips, Step, lower
from pipekit.schedules.repeated import Pattern
from pipekit.schedules.schedule import Schedule


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


def endless(
    schedule: Callable[[int], Schedule], skips: Skips = (), ties: Skips = ()
) -> tuple[tuple[EndlessSteps, ...], Schedule]:
    """Return every worker's steps for batches without end, and the table that they were found in.

    Args:
        schedule: returns the table for a number of batches.
        skips: skip connections between stages.
        ties: stages that share a weight, see :func:`lower`.

    Raises:
        ScheduleError: the tables do not repeat themselves, or one for fewer batches is not the
            beginning of one for more; the message says what that means for training.
    """
    some = schedule(1)
    batch_size = len(some.batches[0])
    # A batch is under way for as long as its version may be kept, and fills as many slots at most.
    first = lower(schedule(4 * some.stages + 4), skips, ties)
    slots = 1 + max(step.slot for steps in first for step in steps)
    full = 2 * max(slots, some.stages)
    whole = schedule(2 * full + 2 * slots)
    _require_beginnings(schedule, whole, batch_size, range(1, full + slots + 1, slots))
    lowered = lower(whole, skips, ties)
    return tuple(_repeated(steps, full, slots, batch_size) for steps in lowered), whole


def _require_beginnings(
    schedule: Callable[[int], Schedule], whole: Schedule, batch_size: int, counts: Sequence[int]
) -> None:
    """Raise ScheduleError unless a run may end after any batch, as a shorter table does."""
    ends = {boundary.microbatches for boundary in boundaries(whole, every=1)}
    for batches in counts:
        end = batches * batch_size
        beginning = map(tuple, until(whole, end).workers)
        same = tuple(beginning) == tuple(map(tuple, schedule(batches).workers))
        if any(len(workers) > 1 for workers in whole.stage_workers) or not same or end not in ends:
            raise ScheduleError(
                f"{whole.title} has to know how many batches there are: its table for {batches} "
                f"is not the beginning of a longer one, or its stages are on several workers"
            )


def _repeated(steps: Sequence[Step], full: int, slots: int, batch_size: int) -> EndlessSteps:
    """Return a worker's steps as a beginning and a round.

    A round begins with the first step of a batch.  Its length is that in which the weight slots of
    the worker's stages come round.
    """
    steps = tuple(steps)
    begins: dict[int, int] = {}  # by batch: where its first step stands
    for place, step in enumerate(steps):
        begins.setdefault(step.task.microbatch // batch_size, place)
    for length in range(1, slots + 1) if steps else ():
        first, second, third = (begins[full + times * length] for times in range(3))
        size = length * batch_size
        if steps[second:third] == tuple(step.later(size, length) for step in steps[first:second]):
            return EndlessSteps(steps[:second], first, size, length)
    if steps:
        raise ScheduleError(
            f"the table does not repeat itself within {slots} batches after {full}: say how many "
            f"batches there are, by their length or steps=..."
        )
    return EndlessSteps((), 0, batch_size, 1)
