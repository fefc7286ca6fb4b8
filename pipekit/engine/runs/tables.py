"""A pipeline's schedules: made for a number of batches, checked, and lowered to workers' steps."""

import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pipekit.engine.ending import Cuts, EachBatch, Ends, Window
from pipekit.host.garbage import not_collected
from pipekit.schedules import (
    Boundary,
    EndlessSteps,
    EndlessTurns,
    Op,
    Schedule,
    ScheduleError,
    Skips,
    Step,
    Sum,
    boundaries,
    check,
    distinct,
    endless,
    inference,
    loss_versions,
    lower,
    steps_after,
    sum_order,
    sums,
)
from pipekit.schedules.lowering.validation import Validation, validations

MANY_BATCHES = 1000
"""From so many on, a table is not made as a whole if it has one without end."""


@dataclass(frozen=True)
class Table:
    """A schedule, and what the workers have to know of it.

    Attributes:
        schedule: the table itself; of one without end, the beginning that it was made from.
        steps: of each worker.
        sums: what each update of each stage sums.
        stops: for each stage on several workers, the microbatch behind those of each update.
        sum_order: in which order the workers sum, where stages are on several.
        round: of one without end, the batches after which a run may end, or a multiple.
        validations: of each worker, if updates are validated later.
    """

    schedule: Schedule
    steps: Sequence[Sequence[Step]]
    sums: Sequence[Sequence[Sum]]
    stops: Sequence[Sequence[int]]
    sum_order: Iterable[tuple[int, int]]
    validations: Sequence[Validation] = ()
    round: int = 1

    @classmethod
    def of(
        cls,
        schedule: Schedule,
        skips: Skips,
        ties: Skips = (),
        joint_updates: bool = False,
        validate_later: bool = False,
    ) -> "Table":
        """Lower a schedule, with skip connections between stages and weights that they share.

        Args:
            schedule: the table.
            skips: the stages where each skip connection begins and ends.
            ties: the stages between which the gradient of each shared weight goes back.
            joint_updates: whether the updates of a batch wait for one another on all stages.
            validate_later: whether they are made before, and validated later.

        Raises:
            ScheduleError: if an update had to be made again, workers would wait for ever.
        """
        order = sum_order(schedule, joint_updates)
        steps = lower(schedule, skips, ties)
        later = validations(schedule, steps) if validate_later and schedule.trains else ()
        stops = [
            [summed.stop for summed in stage] if len(workers) > 1 else ()
            for stage, workers in zip(schedule.updates, schedule.stage_workers, strict=True)
        ]
        return cls(schedule, steps, sums(schedule), stops, order, later)

    @classmethod
    def endless(
        cls,
        schedule: Callable[[int], Schedule],
        skips: Skips,
        ties: Skips = (),
        joint_updates: bool = False,
        goes_on: bool = False,
    ) -> "Table":
        """Return a table that repeats itself without end.

        Args:
            schedule: returns that for a number of batches.
            skips, ties, joint_updates: those of :meth:`of`.
            goes_on: whether a run by it may go on where another one has ended.

        Raises:
            ScheduleError: it does not repeat itself.
        """
        found = endless(schedule, skips, ties, joint_updates, goes_on)
        every = tuple(_Every(stage[0]) for stage in sums(found.whole))
        sizes = [stage[0].stop for stage in found.whole.updates]  # of what an update sums
        stops = [range(size, sys.maxsize, size) for size in sizes]
        return cls(found.whole, found.steps, every, stops, found.turns, round=found.round)

    def steps_after(self, boundary: Boundary | None) -> Sequence[Sequence[Step]]:
        """Return what each worker does if the run is taken up again after a boundary."""
        return steps_after(self.steps, boundary) if boundary else self.steps

    def loss_versions(self) -> Sequence[int]:
        """Return of which version the losses of each update have the scale, if they are scaled."""
        versions = loss_versions(self.schedule)
        is_endless = any(isinstance(steps, EndlessSteps) for steps in self.steps)
        return _Growing(versions) if is_endless else versions

    def steps_from(self, microbatch: int) -> Sequence[EndlessSteps]:
        """Return what each worker of a table without end does from a microbatch on."""
        endless_steps = (steps for steps in self.steps if isinstance(steps, EndlessSteps))
        return [replace(steps, begin=microbatch) for steps in endless_steps]

    def sums_from(self, microbatch: int) -> Iterable[tuple[int, int]]:
        """Return the sums of a table without end from a microbatch on, maybe with some before."""
        order = self.sum_order
        batch_size = len(self.schedule.batches[0])
        rounds = microbatch // (batch_size * self.round)
        return replace(order, skip=rounds) if isinstance(order, EndlessTurns) else order

    def made_before(self, microbatch: int) -> tuple[int, ...]:
        """Return the updates of each stage of a table without end before a microbatch."""
        batches = microbatch // len(self.schedule.batches[0])
        return tuple(batches // stage[0].batches for stage in self.sums)

    def part(self, window: Window, end: int) -> Schedule:
        """Return what a run did of a table without end, if it ended before a microbatch."""
        tasks = (
            tuple(step.task for step in steps.until(lambda: end))
            for steps in self.steps_from(window.begin)
        )
        return replace(self.schedule, workers=tuple(tasks), overlaps=frozenset())


@dataclass(frozen=True)
class _Every(Sequence[Sum]):
    """What each update of a table without end sums: the microbatches of its batch."""

    sum: Sum

    def __len__(self) -> int:
        return sys.maxsize

    def __getitem__(self, update: Any) -> Any:
        return self.sum


@dataclass(frozen=True)
class _Growing(Sequence[int]):
    """Versions that grow with every update, once the pipeline is full."""

    first: tuple[int, ...]

    def __len__(self) -> int:
        return sys.maxsize

    def __getitem__(self, update: Any) -> Any:
        beyond = update - len(self.first) + 1
        return self.first[update] if beyond <= 0 else self.first[-1] + beyond


def links(steps: Sequence[Sequence[Step]]) -> frozenset[tuple[int, int]]:
    """Return the pairs of workers of which the first sends the second messages between stages."""
    return frozenset(
        (sender, receiver)
        for sender, own in enumerate(steps)
        for step in distinct(own)
        for _, receiver in step.sends
    )


class Tables:
    """The tables of one pipeline.

    Args:
        schedule: one, or a function from the number of batches to one.

    Attributes:
        example: the schedule, or that for one batch.

    Raises:
        TypeError: it is no schedule.
        ScheduleError: it cannot be executed.
    """

    def __init__(self, schedule: Schedule | Callable[[int], Schedule]) -> None:
        self._schedule = schedule
        self.example = schedule(1) if callable(schedule) else schedule
        _check(self.example)
        self._schedules: dict[int, Schedule] = {}
        self._last: dict[bool, Table] = {}  # the last one lowered, of those that train or do not
        self._endless: dict[tuple[Skips, Skips, bool, bool], Table] = {}
        self._ends: tuple[Schedule, list[range]] | None = None  # of the last run

    def schedule(self, batches: int) -> Schedule:
        """Return the checked schedule for a number of batches.

        Raises:
            ScheduleError: there is none, or it has other stages or workers than the example.
        """
        if batches not in self._schedules:
            with not_collected():
                self._schedules = {batches: self._made(batches)}
        return self._schedules[batches]

    def inference(self, batches: int) -> Schedule:
        """Return the schedule by which batches stream through the first worker of each stage."""
        first = [workers[0] for workers in self.example.stage_workers]
        return inference(self.example.stages, batches, first, len(self.example.workers))

    def table(
        self,
        schedule: Schedule,
        skips: Skips,
        ties: Skips,
        joint_updates: bool,
        validate_later: bool = False,
    ) -> Table:
        """Return a schedule lowered; that of the last run is not lowered again."""
        last = self._last.get(schedule.trains)
        if last is None or last.schedule != schedule:
            with not_collected():
                last = self._last[schedule.trains] = Table.of(
                    schedule, skips, ties, joint_updates, validate_later
                )
        return last

    def ends(self, schedule: Schedule, begin: int = 0) -> Ends:
        """Return where a run by a schedule may end early, from a microbatch on."""
        if schedule.period and len(schedule.period.batches) == 1:
            return EachBatch(begin, schedule.period.microbatches)
        if self._ends is None or self._ends[0] is not schedule:
            cuts = {0, *(boundary.microbatches for boundary in boundaries(schedule, every=1))}
            self._ends = schedule, [batch for batch in schedule.batches if batch.start in cuts]
        return Cuts(tuple(batch for batch in self._ends[1] if batch.start >= begin))

    def endless(
        self,
        skips: Skips = (),
        ties: Skips = (),
        joint_updates: bool = False,
        goes_on: bool = False,
    ) -> Table:
        """Return the table that has no end; see :meth:`Table.endless`."""
        key = tuple(skips), tuple(ties), joint_updates, goes_on
        if key not in self._endless:
            with not_collected():
                self._endless[key] = Table.endless(self._made, *key)
        return self._endless[key]

    def delays(self) -> list[int]:
        """Return, for each stage, how many updates a forward is behind its own update at most.

        Of a function, in a run long enough for the pipeline to be full.
        """
        schedule = self.example
        if callable(self._schedule):
            schedule = self._made(4 * max(2, len(schedule.workers)))
        delays = [0] * schedule.stages
        for tasks in schedule.workers:
            for op, stage, microbatch, version in tasks:
                if op is Op.FORWARD:
                    late = schedule.update_of[stage][microbatch] - 1 - version
                    delays[stage] = max(delays[stage], late)
        return delays

    def repeats(self) -> bool:
        """Return whether there is a table without end, of which a run may have any batches."""
        try:
            return self.endless().round == 1
        except ScheduleError:
            return False

    def takes_long(self, batches: int) -> bool:
        """Return whether to begin with a table without end, as that of so many takes seconds.

        Not that of a method with a flush, which is one batch, repeated.
        """
        if batches < MANY_BATCHES or isinstance(self._schedule, Schedule):
            return False
        return self._made(2).period is None and self.repeats()

    def _made(self, batches: int) -> Schedule:
        schedule, example = self._schedule, self.example
        if not isinstance(schedule, Schedule):
            schedule = schedule(batches)
            _check(schedule)
        if schedule.stages != example.stages or len(schedule.workers) != len(example.workers):
            raise ScheduleError(
                f"the schedule for {batches} batches has {schedule.stages} stages on "
                f"{len(schedule.workers)} workers; it had {example.stages} on "
                f"{len(example.workers)}"
            )
        if len(schedule.batches) != batches:
            raise ScheduleError(
                f"the schedule is for {len(schedule.batches)} batches and there are {batches}: "
                f"pass a function, e.g. lambda n: schedules.flush(stages, microbatches, n)"
            )
        return schedule


def _check(schedule: Schedule) -> None:
    if not isinstance(schedule, Schedule):
        raise TypeError(f"schedule must be a Schedule, not {type(schedule).__name__}")
    if not schedule.trains:
        raise ScheduleError("the schedule has no backward: it cannot train")
    check(schedule)
