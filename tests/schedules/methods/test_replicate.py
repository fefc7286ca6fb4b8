"""Pipelines side by side, and updates as late as their readers allow."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from operator import itemgetter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipekit.schedules import (
    Op,
    Schedule,
    ScheduleError,
    Task,
    check,
    flush,
    parse,
    replicate,
    two_bw,
)
from pipekit.schedules.methods.replicate import late_updates
from tests.schedules.strategies import endless_methods, training_methods


def test_figure_4_is_two_pipelines_of_depth_three() -> None:
    assert replicate(two_bw(3, 3).take(1), 2) == parse("""
        worker 0         | F0 F2 F4 .  .  .  .  B0 -  .  B2 -  .  B4 -^5
        worker 1 stage 0 | F1 F3 F5 .  .  .  .  B1 -  .  B3 -  .  B5 -^
        worker 2 stage 1 | .  F0 F2 .  .  B0 -  F4 B2 -  .  B4 -^5
        worker 3 stage 1 | .  F1 F3 .  .  B1 -  F5 B3 -  .  B5 -^
        worker 4 stage 2 | .  .  F0 B0 -  F2 B2 -  F4 B4 -^5
        worker 5 stage 2 | .  .  F1 B1 -  F3 B3 -  F5 B5 -^
        """)


def test_an_update_comes_as_late_as_its_readers_allow() -> None:
    """The next batch hides the sum over the pipelines: version 1 is first read by 8 and 9."""
    assert replicate(two_bw(2, 2).take(3), 2) == parse("""
        worker 0         | F0 F2 .  B0 -  F4 B2 -  F6 B4 -^3 F8 B6 -  F10 B8 -  .  B10 -^7^11
        worker 1 stage 0 | F1 F3 .  B1 -  F5 B3 -  F7 B5 -^3 F9 B7 -  F11 B9 -  .  B11 -^7^
        worker 2 stage 1 | .  F0 B0 -  F2 B2 -  F4 B4 -  F6 B6 -^3 F8 B8 -  F10 B10 -^7^11
        worker 3 stage 1 | .  F1 B1 -  F3 B3 -  F5 B5 -  F7 B7 -^3 F9 B9 -  F11 B11 -^7^
        """)


def test_partners_and_chunks_are_those_of_each_pipeline() -> None:
    moved = parse("worker 0 | F0/O0>1 . L0>1 B0 -^\nworker 1 | F0 B0 -^")
    peers = [task.op.peer for tasks in replicate(moved, 2).head for task in tasks if task.op.stream]
    assert peers == [2, 2, 3, 3]
    cut = replace(parse("worker 0 | F0 F1 B1 - B0 -^"), chunks=2)
    both = replicate(cut, 2)
    assert [[task.microbatch for task in tasks] for tasks in both.head] == [
        [0, 1, 1, 0, 3],
        [2, 3, 3, 2, 3],
    ]
    check(both)


@given(training_methods, st.integers(1, 4))
def test_every_pipeline_keeps_no_more_than_the_one_kept(schedule: Schedule, width: int) -> None:
    alone, together = check(schedule), check(replicate(schedule, width))
    most = [v for v in alone.peak_versions for _ in range(width)]
    assert all(kept <= v for kept, v in zip(together.peak_versions, most, strict=True))
    assert together.peak_in_flight == tuple(v for v in alone.peak_in_flight for _ in range(width))


def test_no_pipelines_are_refused() -> None:
    with pytest.raises(ScheduleError, match="width must be a whole number of at least 1, not 0"):
        replicate(flush(2, 2), 0)


@given(training_methods)
def test_an_update_moves_to_its_first_reader_if_stages_agree_or_to_where_the_next_was(
    schedule: Schedule,
) -> None:
    first: defaultdict[int, dict[int, int]] = defaultdict(dict)  # by version and stage
    for op, stage, microbatch, version in sorted(chain(*schedule.workers), key=itemgetter(2)):
        if op is not Op.UPDATE:
            first[version].setdefault(stage, microbatch)

    def place(tasks: Sequence[Task], position: int) -> float:
        """Of a task in the new order."""
        op, _, _, version = tasks[position]
        readers = [first[version].get(stage) for stage in range(schedule.stages)]
        if op is not Op.UPDATE or len(set(readers)) > 1:
            return position
        later = range(position + 1, len(tasks))
        stops = (i for i in later if tasks[i].op is Op.UPDATE or tasks[i].version == version)
        return next(stops, len(tasks)) - 0.5

    for tasks, moved in zip(schedule.workers, late_updates(schedule).workers, strict=True):
        order = sorted(range(len(tasks)), key=partial(place, tasks))
        assert moved == tuple(tasks[i] for i in order)


@given(endless_methods, st.integers(1, 12))
def test_without_end_likewise(schedule: Schedule, batches: int) -> None:
    moved = late_updates(schedule)
    assert moved.period_versions == schedule.period_versions
    check(moved, joint_updates=joint(schedule))
    alone, together = check(schedule), check(moved)
    assert all(a <= b for a, b in zip(together.peak_versions, alone.peak_versions, strict=True))
    assert together.peak_in_flight == alone.peak_in_flight
    before, after = schedule.take(batches), moved.take(batches)
    assert after.updates == before.updates
    for tasks, others in zip(after.workers, before.workers, strict=True):
        for is_pass in (True, False):
            one, other = ([t for t in e if t.op.is_pass is is_pass] for e in (tasks, others))
            assert sorted(one) == sorted(other) if not is_pass else one == other
        assert most_sums(after, tasks) <= most_sums(before, others) + 1


def joint(schedule: Schedule) -> bool:
    """Whether its updates can be made together."""
    try:
        check(schedule, joint_updates=True)
    except ScheduleError:
        return False
    return True


def test_without_end_2bw_makes_a_version_when_it_is_first_read() -> None:
    assert late_updates(two_bw(2, 2)).take(4) == parse("""
        worker 0 | F0 F1 B0 F2 B1 F3 B2 ^1 F4 B3 F5 B4 ^3 F6 B5 F7 B6 ^5 B7^
        worker 1 | F0 B0 F1 B1 F2 B2 F3 B3 ^1 F4 B4 F5 B5 ^3 F6 B6 F7 B7 ^5^
        """)


def most_sums(schedule: Schedule, tasks: Sequence[Task]) -> int:
    """How many updates have some of their gradients, and are not made, at most at once."""
    open_: set[int] = set()
    counts = [0]
    for op, stage, microbatch, version in tasks:
        if op is Op.BACKWARD:
            open_.add(schedule.update_of[stage][microbatch])
        elif op is Op.UPDATE:
            open_.discard(version)
        counts.append(len(open_))
    return max(counts)


@given(training_methods, st.integers(1, 3))
def test_pipelines_that_clip_together_do_not_wait_for_ever(schedule: Schedule, width: int) -> None:
    """Updates of all stages come at one moment, though they stand in different places."""
    check(schedule, joint_updates=True)
    check(replicate(schedule, width), joint_updates=True)
