"""What workers run of a schedule without end is what they run of each of its finite parts."""

from collections.abc import Iterable
from functools import partial
from itertools import islice

import pytest

from pipekit import schedules
from pipekit.schedules import Schedule, Step, lower
from pipekit.schedules.lowering.lower import loss_versions
from pipekit.schedules.lowering.sums import sum_order, sums

SCHEDULES: dict[str, Schedule] = {
    "pipedream": schedules.pipedream(3),
    "vertical sync": schedules.pipedream(4, vertical_sync=True),
    "no stashing": schedules.pipedream(3, stashing=False),
    "more in flight": schedules.pipedream(3, in_flight=[5, 3, 1]),
    "2bw": schedules.two_bw(3, 4),
    "2bw with flushes": schedules.two_bw(2, 3, flush_after=(0, 2)),
    "paci": schedules.paci(3, 2),
    "flush": schedules.flush(3, 4),
    "interleaved": schedules.interleaved(4, 4, workers=2),
    "zero bubble": schedules.zb_h1(3, 4),
    "pipedream 2-1": schedules.pipedream([2, 1]),
    "pipedream 2-3": schedules.pipedream([2, 3]),
    "asp": schedules.asp(3),
    "two pipelines of 2bw": schedules.replicate(schedules.two_bw(2, 2), 2),
    "three of flush": schedules.replicate(schedules.flush(2, 2), 3),
    "chimera": schedules.chimera(2, 4),
    "three batches of 2bw, repeated": schedules.two_bw(2, 2).take(3).repeat(),
}
LONG = 60
named = pytest.mark.parametrize("name", SCHEDULES)


@named
def test_a_run_of_so_many_batches_has_the_steps_of_the_finite_schedule(name: str) -> None:
    """But for where an update stands among passes that do not read what it makes."""
    schedule = SCHEDULES[name]
    for periods in (1, 2, 7, 20):
        finite = schedule.take(periods * len(schedule.batch_stops))
        end = finite.microbatches
        for ours, theirs in zip(lower(schedule), lower(finite), strict=True):
            run = [*ours.until(partial(int, end))]
            assert parted(run) == parted(theirs.head)


def parted(steps: Iterable[Step]) -> tuple[list[Step], list[Step]]:
    """Return passes, and updates, without weight slots: knowing the end, others may be free."""
    found = [step._replace(slot=0, ends_update=False) for step in steps]
    return (
        [step for step in found if step.task.op.is_pass],
        [step for step in found if not step.task.op.is_pass],
    )


@named
def test_every_pass_finds_its_version_in_its_slot(name: str) -> None:
    schedule = SCHEDULES[name]
    end = 24 * schedule.period_microbatches
    for steps in lower(schedule):
        held = {(stage, 0): 0 for stage in range(schedule.stages)}
        for (op, stage, _, version), _, _, slot, *_ in steps.until(partial(int, end)):
            if op.is_pass:
                assert held[stage, slot] == version
            else:
                held[stage, slot] = version


@named
def test_sums_and_scales_of_losses_are_those_of_the_finite_schedule(name: str) -> None:
    schedule = SCHEDULES[name]
    long = schedule.take(LONG)
    for endless, finite in zip(sums(schedule), sums(long), strict=True):
        assert [*islice(endless, 20)] == [*finite.head[:20]]
    assert [*islice(loss_versions(schedule), 20)] == [*loss_versions(long).head[:20]]


@named
def test_sums_over_workers_come_in_the_order_of_a_replay_from_anywhere(name: str) -> None:
    schedule = SCHEDULES[name]
    order, known = sum_order(schedule), sum_order(schedule.take(LONG)).head
    half = len(known) // 2
    assert [*islice(order, half)] == [*known[:half]]
    assert bool(order.period) == any(len(workers) > 1 for workers in schedule.stage_workers)
