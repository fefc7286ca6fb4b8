"""A schedule, checked, and lowered to the steps of its workers, which needs no batch of data.

What is found out about a schedule is kept with it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain

from pipekit.engine.arguments import require_runnable
from pipekit.engine.config import PossibleStops, RunTable
from pipekit.host.memory import not_collected
from pipekit.schedules import Op, Schedule, ScheduleError, Steps, check, lower
from pipekit.schedules.lowering.boundaries import boundaries
from pipekit.schedules.lowering.lower import Skips, loss_versions
from pipekit.schedules.lowering.recurring import Recurring
from pipekit.schedules.lowering.sums import stops, sum_order, sums
from pipekit.schedules.schedule import periods_under_way


@dataclass(frozen=True)
class LoweredTable:
    """A schedule, the steps of each of its workers, and what all workers know of it."""

    schedule: Schedule
    steps: Sequence[Steps]
    common: RunTable

    @cached_property
    def loss_versions(self) -> Recurring[int]:
        """The version whose scale the losses of each update have, if they are scaled."""
        return loss_versions(self.schedule)


def checked(schedule: Schedule) -> Schedule:
    """Return a schedule that can train.

    Raises:
        TypeError: ``schedule`` is not a Schedule.
        ScheduleError: it cannot be executed.
    """
    if not isinstance(schedule, Schedule):
        raise TypeError(
            f"schedule must be a Schedule, e.g. schedules.two_bw(4, 8), not "
            f"{type(schedule).__name__}"
        )
    if not schedule.trains:
        raise ScheduleError("the schedule has no backward: it cannot train")
    check(schedule)
    require_runnable(schedule)
    return schedule


def taken(schedule: Schedule, batches: int) -> Schedule:
    """Return the finite schedule for a number of batches; the last one is kept.

    Raises:
        ScheduleError: the schedule is finite and has another number.
    """
    if not schedule.period:
        if len(schedule) != batches:
            raise ScheduleError(
                f"the schedule is for {len(schedule)} batches and there are {batches}: pass one "
                f"without end, as schedules.flush(stages, microbatches) is, or make one of a "
                f"batch by repeat()"
            )
        return schedule
    with not_collected():
        return schedule.remembered("taken", lambda: schedule.take(batches), batches)


def lowered(
    schedule: Schedule, skips: Skips = (), ties: Skips = (), joint_updates: bool = False
) -> LoweredTable:
    """Return a schedule lowered, with skip connections between stages and weights they share."""
    ends = tuple(skips), tuple(ties)
    with not_collected():
        return schedule.remembered(
            ("lowered", *ends, joint_updates), lambda: _lowered(schedule, *ends, joint_updates)
        )


def _lowered(schedule: Schedule, skips: Skips, ties: Skips, joint_updates: bool) -> LoweredTable:
    steps = lower(schedule, skips, ties)
    stage_workers = schedule.stage_workers
    shared = any(len(workers) > 1 for workers in stage_workers)
    common = RunTable(
        workers=schedule.worker_count,
        stage_workers=stage_workers,
        busy=tuple(sorted({*chain(*stage_workers)})),
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
    return LoweredTable(schedule, steps, common)


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


def stops_anywhere(schedule: Schedule) -> bool:
    """Return whether a run by an endless schedule may end before each batch.

    Updates of stages on several workers may average several batches.
    """
    return len(possible_stops(schedule).batches) == len(schedule.batch_stops)


def delays(schedule: Schedule) -> list[int]:
    """Return, for each stage, the most updates between a forward and its own update."""
    some = schedule.excerpt()
    found = [0] * some.stages
    for op, stage, microbatch, version in chain(*some.workers):
        if op is Op.FORWARD:
            late = some.update_of[stage][microbatch] - 1 - version
            found[stage] = max(found[stage], late)
    return found


def batches_done(schedule: Schedule, end: int) -> Iterator[range]:
    """Yield the microbatches of each batch that a run has trained on, which ends before one."""
    for batch in schedule.each_batch():
        if (batch.start if schedule.period else batch.stop - 1) >= end:
            return
        yield batch
