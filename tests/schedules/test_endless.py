"""Schedules without end: their finite parts, and the proof that holds for all of these."""

import pickle
import re
from collections.abc import Callable
from dataclasses import replace
from inspect import cleandoc
from operator import attrgetter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipekit import Profile, Trace, schedules
from pipekit.schedules import (
    Op,
    Schedule,
    ScheduleError,
    asp,
    check,
    flush,
    gpipe,
    inference,
    interleaved,
    parse,
    pipedream,
    read_csv,
    two_bw,
    zb_h1,
)
from tests.schedules.reference import refusal
from tests.schedules.strategies import SLIPS, Slip, any_in_flight, endless_methods

batches = st.integers(1, 12)


# --- Finite parts ---------------------------------------------------------------------------------


def test_the_first_batches_are_the_first_tasks_in_their_order() -> None:
    assert two_bw(2, 2).take(3) == parse("""
        worker 0 | F0 F1 .  B0 -  F2 B1 -^ F3:0 B2 -  F4 B3 -^ F5:1 B4 - B5 -^
        worker 1 | .  F0 B0 -  F1 B1 -^ F2:0 B2 - F3:0 B3 -^ F4:1 B4 - F5:1 B5 -^
        """)


@given(endless_methods, batches, batches)
def test_fewer_batches_are_the_same_tasks_without_those_of_later_batches(
    schedule: Schedule, few: int, more: int
) -> None:
    part, whole = schedule.take(few), schedule.take(few + more)
    for ours, theirs in zip(part.workers, whole.workers, strict=True):
        passes, expected = (
            [t for t in each if t.op.is_pass and t.microbatch < part.microbatches]
            for each in (ours, theirs)
        )
        assert passes == expected
    assert len(part) == few
    assert [*part.batches] == [*whole.batches[:few]] == [schedule.batch(n) for n in range(few)]
    assert whole.take(few) == part


@pytest.mark.parametrize("count", [0, -1, 1.5, "2"])
def test_a_number_of_batches_is_whole_and_at_least_1(count: int) -> None:
    for schedule in flush(2, 2), flush(2, 2).take(3):
        with pytest.raises(ScheduleError, match="batches must be a whole number of at least 1"):
            schedule.take(count)


def test_a_finite_one_has_no_more_batches_than_it_has() -> None:
    with pytest.raises(ScheduleError, match=r"has 3 batches and not 4: repeat\(\) makes a sched"):
        flush(2, 2).take(3).take(4)


def test_pairs_that_run_together_are_kept_where_both_are() -> None:
    schedule = schedules.dualpipe(2, 4)
    first, both = schedule.take(1), schedule.take(2)
    assert first.overlaps < both.overlaps
    assert len(both.overlaps) == 2 * len(first.overlaps)


# --- Repeated -------------------------------------------------------------------------------------


@given(st.sampled_from([gpipe, flush, zb_h1]), st.integers(1, 3), st.integers(1, 4), batches)
def test_one_batch_repeated_is_the_method(
    method: Callable[[int, int], Schedule], p: int, m: int, count: int
) -> None:
    schedule = method(p, m)
    again = schedule.take(1).repeat()
    assert again == schedule
    assert hash(again) == hash(schedule)
    assert schedule.take(count).repeat().take(2 * count) == schedule.take(2 * count)


def test_batches_of_a_period_may_differ_in_size() -> None:
    schedule = parse("worker 0 | F0 B0^ F1 F2 B1 B2^").repeat()
    check(schedule)
    assert schedule.batch_stops == (1, 3)
    assert [schedule.batch(n) for n in range(3)] == [range(1), range(1, 3), range(3, 4)]
    assert schedule.take(3).batches == (range(1), range(1, 3), range(3, 4))


@pytest.mark.parametrize(
    ("schedule", "message"),
    [
        (flush(2, 2), "PipeDream-Flush has no end: there is nothing to repeat() behind it"),
        (Schedule(((), ())), "the schedule is empty"),
        (parse("worker 0 | F0 B0^ F1 B1"), "sums up to microbatch 0, and the last microbatch is 1"),
        (parse("worker 0 | F0 B0"), "the last update of stage 0 sums nothing"),
        (parse("worker 0 | F0 F1 B0 B1^\nworker 1 | F0 F1 B0^ B1"), "worker 1: the last update"),
    ],
)
def test_what_cannot_be_repeated_is_refused(schedule: Schedule, message: str) -> None:
    with pytest.raises(ScheduleError, match=re.escape(message)):
        schedule.repeat()


# --- What is shown of it --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("schedule", "title"),
    [
        (flush(4, 8), "PipeDream-Flush, 1 batch"),
        (two_bw(4, 4), "PipeDream-2BW, 3 batches"),
        (two_bw(2, 2, flush_after=[0]), "PipeDream-2BW with 1 flushes, 4 batches"),
        (pipedream(3), "PipeDream, 5 batches"),
        (pipedream([2, 1]), "PipeDream 2-1, 6 batches"),
        (asp(2), "ASP, 6 batches"),
        (inference(3), "inference, 1 batch"),
        (replace(flush(2, 2), name="mine\nand yours"), "mine and yours, 1 batch"),
    ],
)
def test_an_excerpt_says_how_many_batches_it_has(schedule: Schedule, title: str) -> None:
    assert schedule.excerpt().title == title
    assert schedule.excerpt() == schedule.take(len(schedule.excerpt()))


def test_a_printed_one_is_its_excerpt() -> None:
    assert str(two_bw(2, 2)) == cleandoc("""
        # PipeDream-2BW, 3 batches
        time     | 1    2    3    4    5    6    7    8    9    10   11   12   13   14   15   16   17   18   19   20   21
        worker 0 | F0   F1   .    .    B0   -    F2   B1   -^   F3:0 B2   -    F4   B3   -^   F5:1 B4   -    .    B5   -^
        worker 1 | .    F0   B0   -    F1   B1   -^   F2:0 B2   -    F3:0 B3   -^   F4:1 B4   -    F5:1 B5   -^
        """)
    assert read_csv(two_bw(2, 2).to_csv()) == two_bw(2, 2).take(3)
    assert read_csv(two_bw(2, 2).to_csv(batches=5)) == two_bw(2, 2).take(5)


def test_of_a_finite_one_all_is_shown_unless_fewer_are_asked_for() -> None:
    part = pipedream(2).take(4)
    assert part.excerpt() is part
    assert part.excerpt(2) == pipedream(2).take(2)
    with pytest.raises(ScheduleError, match="has 4 batches and not 5"):
        part.excerpt(5)


@pytest.mark.parametrize(
    "asked",
    [len, *map(attrgetter, ("microbatches", "workers", "batches", "updates", "dependencies"))],
)
def test_what_only_a_finite_one_has_names_take(asked: Callable[[Schedule], object]) -> None:
    with pytest.raises(
        ScheduleError,
        match=r"PACI is a schedule without end: take\(batches\) gives that of the first batches",
    ):
        asked(schedules.paci(2, 2))


def test_what_both_have() -> None:
    for schedule in interleaved(4, 2, workers=2), interleaved(4, 2, workers=2).take(3):
        assert bool(schedule)
        assert (schedule.worker_count, schedule.stages) == (2, 4)
        assert schedule.stage_workers == ((0,), (1,), (0,), (1,))
        assert schedule.trains
    assert not inference(2).trains
    trace = Trace.from_schedule(flush(2, 3).take(1))
    assert repr(trace) == "<Trace PipeDream-Flush: 2 workers, 14 events, 12 slots (exact)>"
    assert repr(Profile.uniform(2)) == "<Profile: 2 layers, 1 row (exact)>"
    assert repr(flush(2, 3)) == "<Schedule PipeDream-Flush: 2 workers, 2 stages, no end>"


@given(endless_methods)
def test_it_is_pickled_and_compared_as_a_table(schedule: Schedule) -> None:
    again = pickle.loads(pickle.dumps(schedule))
    assert again == schedule
    assert hash(again) == hash(schedule)
    assert schedule != schedule.take(2)


# --- The proof ------------------------------------------------------------------------------------


@settings(deadline=None)
@given(endless_methods, batches, st.booleans())
def test_what_is_proved_holds_for_every_number_of_batches(
    schedule: Schedule, count: int, joint_updates: bool
) -> None:
    if refusal(lambda: check(schedule, joint_updates=joint_updates)) is None:
        part = check(schedule.take(count), joint_updates=joint_updates)
        most = check(schedule, joint_updates=joint_updates)
        for peak in map(attrgetter, ("peak_in_flight", "peak_versions")):
            assert all(one <= other for one, other in zip(peak(part), peak(most), strict=True))
    else:
        assert joint_updates, "every method can be executed"


@settings(deadline=None)
@given(any_in_flight)
def test_it_is_refused_just_if_some_number_of_batches_is(schedule: Schedule) -> None:
    refused = [refusal(lambda n=n: check(schedule.take(n))) for n in range(1, 24)]  # type: ignore[misc]
    assert (refusal(lambda: check(schedule)) is None) == (not any(refused))


@settings(deadline=None, max_examples=60)
@given(st.one_of(endless_methods, any_in_flight), st.sampled_from(SLIPS), st.booleans(), st.data())
def test_after_a_slip_it_is_refused_or_holds_for_every_number_of_batches(
    schedule: Schedule, slip: Slip, in_period: bool, data: st.DataObject
) -> None:
    lists = [[*tasks] for tasks in (schedule.period if in_period else schedule.head)]
    updates = [any(task.op is Op.UPDATE for task in tasks) for tasks in lists]
    if not any(lists) or (slip.__name__ == "move_update" and not all(updates)):
        return
    slip(data, lists)
    made = tuple(map(tuple, lists))
    alone = replace(schedule, overlaps=frozenset())
    other = replace(alone, period=made) if in_period else replace(alone, head=made)
    if not other.period or refusal(lambda: check(other)) is not None:
        return
    for count in (1, 2, 3, 5, 8, 13):
        part = other.take(count)
        check(part)
        assert [*part.batches] == [other.batch(n) for n in range(count)]


TWO = "worker 0 | F0 B0^\nworker 1 | F0 B0^"


def endless(head: str, period: str, size: int = 0, made: int = 0) -> Schedule:
    """Return a schedule of two pictures; the period's microbatches and versions come later."""
    first, again = parse(head), parse(period)
    later = tuple(
        tuple(t._replace(microbatch=t.microbatch + size, version=t.version + made) for t in tasks)
        for tasks in again.workers
    )
    return Schedule(first.workers, "mine", period=later)


@pytest.mark.parametrize(
    ("schedule", "message"),
    [
        (
            parse("worker 0 | F0 B0 F1 B1^\nworker 1 | F1 F0 B0 B1^").repeat(),
            "the schedule can never finish: worker 0 waits in B0 of stage 0 for B0 of stage 1",
        ),
        (
            endless(TWO, "worker 0 | B0 F0^0\nworker 1 | F0 B0^", 1, 1),
            "worker 0 waits in B1 of stage 0 for F1 of stage 0, which comes later in its own list",
        ),
        (pipedream(2, in_flight=[1, 2]), "the schedule can never finish"),
        (endless("worker 0 | F0 B0^", "worker 0 | F0 B0^", 2, 1), "no worker has F1 of stage 0"),
        (endless("worker 0 |", "worker 0 | F0 ^0"), "for B0 of stage 0, which no worker has"),
        (
            endless("worker 0 |\nworker 1 |", "worker 0 | F0 F1\nworker 1 | F0"),
            "the period has forwards of stage 1 for 1 microbatches, and of other stages for 2",
        ),
        (endless("worker 0 |", "worker 0 | B0"), "forwards of stage 0 for 0 microbatches"),
        (endless("worker 0 | F0 B0^", "worker 0 | F0 B0^", 1, 2), "reads version 2 before U2 of"),
        (
            endless("worker 0 | F0 B0^ F1 B1^", "worker 0 | F0 F1 B0 B1^", 2, 2),
            "batch 0 has 1 microbatches by the updates of the head, and 2 by those of the period",
        ),
        (replace(flush(1, 4), batch_size=3), "batches of 3"),
        (replace(flush(1, 4), batch_size=8), "batches of 8"),
    ],
)
def test_what_cannot_go_on_for_ever_is_refused(schedule: Schedule, message: str) -> None:
    with pytest.raises(ScheduleError, match=re.escape(message)):
        check(schedule)


def test_workers_that_drift_apart_are_refused() -> None:
    """Worker 1 needs nothing of worker 0, which therefore may come ever later."""
    one = parse("worker 0 | F0 B0^").workers[0]
    apart = Schedule(((), ()), "mine", period=(one, one))
    assert refusal(lambda: check(apart)) is not None


def test_the_proof_takes_no_longer_for_more_batches() -> None:
    """What is proved is remembered, and as large as a few periods."""
    schedule = pipedream(4)
    assert check(schedule) is check(schedule)
    assert max(map(len, check(schedule).versions)) < 100
