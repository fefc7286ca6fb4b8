"""A schedule, checked, and lowered to the steps of its workers, which needs no batch of data.

What is found out about a schedule is kept with it.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain

from pipekit.engine.arguments import require_runnable
from pipekit.engine.config import RunTable
from pipekit.host.memory import not_collected
from pipekit.schedules import Op, Schedule, ScheduleError, Steps, check, lower
from pipekit.schedules.lowering.lower import Skips, loss_versions, slot_counts
from pipekit.schedules.lowering.recurring import Recurring
from pipekit.schedules.lowering.sums import stops, sum_order, sums


@dataclass(frozen=True)
class LoweredTable:
    """A schedule, lowered.

    Attributes:
        steps: of each worker.
        slots: for each worker, the number of weight slots of each of its stages.
        common: known to all workers.
    """

    schedule: Schedule
    steps: Sequence[Steps]
    slots: Sequence[Mapping[int, int]]
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
    return schedule.remembered(
        ("lowered", *ends, joint_updates), lambda: _lowered(schedule, *ends, joint_updates)
    )


@not_collected()
def _lowered(schedule: Schedule, skips: Skips, ties: Skips, joint_updates: bool) -> LoweredTable:
    steps = lower(schedule, skips, ties)
    stage_workers = schedule.stage_workers
    shared = any(len(workers) > 1 for workers in stage_workers)
    summed = sums(schedule)
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
        sums=summed,
        averages=any(each.batches > 1 for one in summed for each in (*one.head, *one.period)),
        stops=stops(schedule) if shared else (),
        sum_order=sum_order(schedule, joint_updates) if shared else Recurring(()),
        made=(0,) * schedule.stages,
    )
    return LoweredTable(schedule, steps, [slot_counts(each) for each in steps], common)


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
