"""A pipeline's schedule, checked, and lowered to the steps of its workers."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain

from pipekit.engine.config import PossibleStops, RunTable
from pipekit.engine.runnable import require_runnable
from pipekit.host.memory import not_collected
from pipekit.schedules import Op, Schedule, ScheduleError, Steps, check, inference, lower
from pipekit.schedules.beginning import periods_under_way
from pipekit.schedules.lowering.boundaries import Boundary, boundaries, steps_after
from pipekit.schedules.lowering.lower import Skips, loss_versions
from pipekit.schedules.lowering.recurring import Recurring
from pipekit.schedules.lowering.sums import stops, sum_order, sums


@dataclass(frozen=True)
class LoweredTable:
    """A schedule, and the tables that its workers follow.

    Attributes:
        schedule: finite, or endless.
        steps: of each worker.
        common: what all workers know of it.
    """

    schedule: Schedule
    steps: Sequence[Steps]
    common: RunTable

    @classmethod
    def of(
        cls,
        schedule: Schedule,
        skips: Skips = (),
        ties: Skips = (),
        joint_updates: bool = False,
    ) -> "LoweredTable":
        """Lower a schedule, with skip connections between stages and weights that they share."""
        steps = lower(schedule, skips, ties)
        stage_workers = schedule.stage_workers
        shared = any(len(workers) > 1 for workers in stage_workers)
        common = RunTable(
            workers=schedule.worker_count,
            stage_workers=stage_workers,
            links=frozenset(
                (sender, receiver)
                for sender, own in enumerate(steps)
                for step in own.distinct
                for _, receiver in step.sends
            ),
            sums=sums(schedule),
            stops=stops(schedule) if shared else (),
            sum_order=sum_order(schedule, joint_updates) if shared else Recurring(()),
            made=(0,) * schedule.stages,
        )
        return cls(schedule, steps, common)

    @cached_property
    def loss_versions(self) -> Recurring[int]:
        """The version whose scale the losses of each update have, if they are scaled."""
        return loss_versions(self.schedule)

    def begun(self, boundary: Boundary | None = None) -> tuple[Sequence[Steps], RunTable]:
        """Return each worker's steps of a run, perhaps after a boundary, and their common table."""
        if boundary is None:
            return self.steps, self.common
        steps = [steps_after(each, boundary) for each in self.steps]
        return steps, replace(self.common, made=boundary.versions)


class Tables:
    """The tables of one pipeline.

    Raises:
        TypeError: ``schedule`` is not a Schedule.
        ScheduleError: it cannot be executed.
    """

    def __init__(self, schedule: Schedule) -> None:
        if not isinstance(schedule, Schedule):
            raise TypeError(
                f"schedule must be a Schedule, e.g. schedules.two_bw(4, 8), not "
                f"{type(schedule).__name__}"
            )
        if not schedule.trains:
            raise ScheduleError("the schedule has no backward: it cannot train")
        check(schedule)
        require_runnable(schedule)
        self.schedule = schedule
        self._taken: tuple[int, Schedule] | None = None  # the last, by its batches
        self._lowered: dict[tuple[object, ...], LoweredTable] = {}  # the last, of each kind of run

    def take(self, batches: int) -> Schedule:
        """Return the finite schedule for a number of batches.

        Raises:
            ScheduleError: the schedule is finite and has another number.
        """
        if not self.schedule.period:
            if len(self.schedule) != batches:
                raise ScheduleError(
                    f"the schedule is for {len(self.schedule)} batches and there are {batches}: "
                    f"pass one without end, as schedules.flush(stages, microbatches) is, or make "
                    f"one of a batch by repeat()"
                )
            return self.schedule
        if self._taken is None or self._taken[0] != batches:
            with not_collected():
                self._taken = batches, self.schedule.take(batches)
        return self._taken[1]

    @cached_property
    def inference(self) -> Schedule:
        """The schedule by which batches stream through the first worker of each stage."""
        first = [workers[0] for workers in self.schedule.stage_workers]
        return inference(self.schedule.stages, first, self.schedule.worker_count)

    def table(
        self,
        schedule: Schedule,
        skips: Skips,
        ties: Skips,
        joint_updates: bool,
    ) -> LoweredTable:
        """Return a schedule lowered; the last run's is kept."""
        key = schedule.trains, tuple(ties)
        last = self._lowered.get(key)
        if last is None or last.schedule is not schedule:
            with not_collected():
                last = self._lowered[key] = LoweredTable.of(schedule, skips, ties, joint_updates)
        return last

    def possible_stops(self, schedule: Schedule, begin: int = 0) -> PossibleStops:
        """Return where a run by a schedule may end early, from a microbatch on."""
        if "possible_stops" not in schedule.known:
            schedule.known["possible_stops"] = _possible_stops(schedule)
        found: PossibleStops = schedule.known["possible_stops"]
        return replace(found, begin=begin)

    @cached_property
    def round(self) -> int:
        """The number of batches whose multiples are possible ends of a run by an endless schedule.

        Updates of stages on several workers may average several batches.
        """
        stops = self.schedule.batch_stops
        return 1 if len(self.possible_stops(self.schedule).batches) == len(stops) else len(stops)

    def delays(self) -> list[int]:
        """Return, for each stage, the most updates between a forward and its own update."""
        schedule = self.schedule.excerpt()
        delays = [0] * schedule.stages
        for op, stage, microbatch, version in chain(*schedule.workers):
            if op is Op.FORWARD:
                late = schedule.update_of[stage][microbatch] - 1 - version
                delays[stage] = max(delays[stage], late)
        return delays


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


def batches_done(schedule: Schedule, end: int) -> Iterator[range]:
    """Yield the microbatches of each batch that a run has trained on, which ends before one."""
    for batch in schedule.each_batch():
        if (batch.start if schedule.period else batch.stop - 1) >= end:
            return
        yield batch
