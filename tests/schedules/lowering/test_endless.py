"""What is lowered from a schedule without end begins as what is lowered from its finite parts."""

from collections.abc import Iterable, Sequence
from itertools import islice, pairwise

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from pipekit import schedules
from pipekit.schedules import (
    OPS,
    Op,
    Schedule,
    ScheduleError,
    Step,
    Steps,
    boundaries,
    check,
    loss_versions,
    lower,
    parse,
    slot_count,
    stops,
    sum_order,
    sums,
    updates_before,
)
from pipekit.schedules.lowering.recurring import Recurring, plus
from tests.schedules.strategies import endless_methods

batches = st.integers(1, 20)


def until(steps: Steps, end: int) -> list[Step]:
    return [*steps.until(lambda: end)]


def follow(steps: Iterable[Step], held: dict[tuple[int, int], int]) -> None:
    """Go through steps by hand, with the version that each slot of each stage holds."""
    for (op, stage, _, version), _, _, slot, *_ in steps:
        if OPS[op].is_pass:
            assert held[stage, slot] == version
        else:
            held[stage, slot] = version


def complete(steps: Sequence[Step], made: Sequence[int]) -> list[Step]:
    """Without slots, and without the updates of sums that the end cuts."""
    stages = {step.task.stage for step in steps if OPS[step.task.op].is_pass}
    return [
        step._replace(slot=0, ends_update=step.ends_update and step.update <= made[step.task.stage])
        for step in steps
        if OPS[step.task.op].is_pass
        or (step.task.stage in stages and step.task.version <= made[step.task.stage])
    ]


@settings(deadline=None)
@given(endless_methods, batches)
def test_the_steps_of_the_first_batches_are_those_of_so_many(
    schedule: Schedule, count: int
) -> None:
    part = schedule.take(count)
    end = part.microbatches
    made = updates_before(schedule, end)
    skips = [(0, schedule.stages - 1)] if schedule.stages > 1 else []
    for own, expected in zip(lower(schedule, skips), lower(part, skips), strict=True):
        assert complete(until(own, end), made) == complete(expected.head, made)
        assert {s.task.op for s in own.distinct} >= {s.task.op for s in expected.head}


@settings(deadline=None)
@given(endless_methods, batches)
def test_every_pass_finds_its_version_in_its_slot(schedule: Schedule, count: int) -> None:
    """And there are as many slots as versions alive at once."""
    peaks = check(schedule).peak_versions
    for worker, own in enumerate(lower(schedule)):
        held = {(stage, 0): 0 for stage in range(schedule.stages)}
        follow(until(own, schedule.batch(count).stop), held)
        kept = {task.stage for task in schedule.period[worker] if OPS[task.op].is_pass}
        if len(kept) == 1:
            assert slot_count(own, *kept) == peaks[worker]


def test_weight_slots_come_round_in_several_periods() -> None:
    """Two versions of 2BW: each other batch writes into the first slot, as in Figure 2."""
    first, last = lower(schedules.two_bw(2, 2))
    assert [s.slot for s in first.period if s.task.op is Op.UPDATE] == [1, 0]
    assert (first.microbatches, first.versions) == (4, (2, 2))
    assert [s.slot for s in until(last, 10) if s.task.op is Op.UPDATE] == [1, 0, 1, 0, 1]


@settings(deadline=None)
@given(endless_methods, st.sets(st.integers(1, 15), min_size=1))
def test_a_run_may_end_behind_any_batch_and_leaves_what_is_read_later(
    schedule: Schedule, ends: set[int]
) -> None:
    assume(schedule.stashing)
    cuts = [0, *(schedule.batch(end).start for end in sorted(ends)), schedule.batch(20).start]
    for own in lower(schedule, goes_on=True):
        held = {(stage, 0): 0 for stage in range(schedule.stages)}
        for begin, end in pairwise(cuts):
            follow([s for s in until(own, end) if s.task.microbatch >= begin], held)


def test_without_stashing_no_run_goes_on() -> None:
    """A microbatch behind the end went forward on weights that its backward was to write over."""
    with pytest.raises(ScheduleError, match="without stashing, a backward can only read a version"):
        lower(schedules.paci(2, 1), goes_on=True)


@settings(deadline=None)
@given(endless_methods, st.integers(0, 30))
def test_it_begins_anywhere(schedule: Schedule, number: int) -> None:
    begin, end = schedule.batch(number).start, schedule.batch(number + 6).stop
    for own in lower(schedule):
        rest = Steps(own.head, own.period, own.microbatches, own.versions, begin)
        expected = [s for s in until(own, end) if s.task.microbatch >= begin]
        assert until(rest, end) == expected


def test_an_end_that_becomes_known_meanwhile_ends_it() -> None:
    ends = [100]
    found = []
    for step in lower(schedules.flush(1, 1))[0].until(lambda: ends[0]):
        found.append(step.task)
        if step.task.microbatch == 2:
            ends[0] = 3
    assert tuple(found) == schedules.flush(1, 1).take(3).workers[0]


@settings(deadline=None)
@given(endless_methods, batches)
def test_what_updates_sum_is_what_those_of_so_many_sum(schedule: Schedule, count: int) -> None:
    part = schedule.take(count)
    made = updates_before(schedule, part.microbatches)
    for ours, theirs in ((sums(schedule), sums(part)), (stops(schedule), stops(part))):
        for own, expected, number in zip(ours, theirs, made, strict=True):
            assert [own[i] for i in range(number)] == [*expected.head[:number]]
            assert [*islice(own, number)] == [*expected.head[:number]]
    if schedule.trains:
        versions, number = loss_versions(schedule), made[-1]
        assert [*islice(versions, number)] == [*loss_versions(part).head[:number]]


@settings(deadline=None)
@given(endless_methods, batches)
def test_updates_before_a_boundary(schedule: Schedule, count: int) -> None:
    for boundary in boundaries(schedule.take(count), 1)[:-1]:
        assert updates_before(schedule, boundary.microbatches) == boundary.versions


@pytest.mark.parametrize(
    "schedule",
    [
        schedules.pipedream([2, 1]),
        schedules.pipedream([2, 3]),
        schedules.replicate(schedules.two_bw(2, 2), 2),
        schedules.replicate(schedules.flush(2, 2), 3),
        schedules.chimera(2, 4),
        schedules.asp(3),
    ],
    ids=str,
)
def test_sums_over_several_workers_come_in_the_order_of_the_finite_table(
    schedule: Schedule,
) -> None:
    turns = sum_order(schedule)
    every = sum_order(schedule.take(60)).head
    assert [*islice(turns, len(every) // 2)] == [*every[: len(every) // 2]]
    for skip in (1, 7, 40):
        behind = len(turns.head) + skip * len(turns.period)
        assert [*islice(turns.skipping(skip), 20)] == [*islice(turns, behind, behind + 20)]


def test_stages_of_one_worker_are_not_summed_with_anybody() -> None:
    assert sum_order(schedules.interleaved(4, 4, workers=2)) == Recurring(())


def test_an_item_is_made_as_it_is_asked_for() -> None:
    odd = Recurring((1,), (3, 5), lambda item, times: plus(item, times, step=4))
    assert [odd[place] for place in range(6)] == [1, 3, 5, 7, 9, 11]
    assert odd[10**9] == 2 * 10**9 + 1
    assert [*islice(odd, 4)] == [1, 3, 5, 7]
    assert [*islice(odd.skipping(2), 3)] == [11, 13, 15]


def test_a_finite_list_has_an_end() -> None:
    few = Recurring((1, 2))
    assert [*few] == [1, 2]
    assert few.skipping(3) == few
    with pytest.raises(IndexError):
        few[2]


def test_slots_of_a_version_that_is_never_replaced() -> None:
    """Inference: one version, and its period is the schedule's."""
    (steps,) = lower(parse("worker 0 | F0 F0@1").repeat())
    assert [s.slot for s in steps.distinct] == [0, 0]
    assert steps.microbatches == 1
