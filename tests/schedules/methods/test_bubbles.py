"""Work in idle time: it is all done, nothing is later, and nothing begins before it can."""

from collections.abc import Iterator
from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipekit import schedules
from pipekit.schedules import Op, Schedule, ScheduleError, Task, check, parse, read_csv, slots
from pipekit.schedules.methods.bubbles import CURVATURE, INVERSION
from tests.schedules.methods.test_all_methods import METHODS
from tests.schedules.reference import in_flight
from tests.schedules.timing import makespan

names = st.sampled_from(sorted(METHODS))
WORK = Op("J", "EXTRA_WORK", slots=1)


def times_of_passes(schedule: Schedule) -> list[list[tuple[Task, float]]]:
    """When each task of the method begins, in its worker's order."""
    return [
        [
            (task, start)
            for task, (start, _) in zip(tasks, times.tolist(), strict=True)
            if task.op is not WORK
        ]
        for tasks, times in zip(schedule.workers, slots(schedule), strict=True)
    ]


def once_a_batch(task: Task) -> Iterator[Task]:
    """Let a worker have a slot's work for each of its stages, once the first forward is over."""
    if task.op is Op.FORWARD and task.microbatch == 0:
        yield task._replace(op=WORK)


@given(names, st.integers(1, 4), st.integers(1, 6))
def test_what_fits_is_all_done_and_nothing_is_later(name: str, p: int, m: int) -> None:
    plain = METHODS[name](p, m)
    try:
        schedule = schedules.filled(plain, once_a_batch)
    except ScheduleError:  # some worker has no slot left in a batch
        assert p == 1 or name not in ("gpipe", "flush", "looped_bfs", "interleaved")
        return
    check(schedule, joint_updates=True)
    three, before = schedule.take(3), plain.take(3)
    assert times_of_passes(three) == times_of_passes(before)
    for tasks in three.workers:
        work = [t[1:3] for t in tasks if t.op is WORK]
        first = plain.period_microbatches
        assert work == [t[1:3] for t in tasks if t.op is Op.FORWARD and t.microbatch % first == 0]
    assert parse(str(three)) == three == read_csv(three.to_csv())


def test_pipefisher_on_three_stages() -> None:
    assert schedules.pipefisher(3, 2).take(2) == parse("""
        worker 0 | F0 F1 . . . . . B0 - K0 B1 -^ F2 F3 K1:1 V1:1 - . . B2 - . B3 -^
        worker 1 | . F0 F1 . . B0 - K0 B1 -^ K1:1 V1:1 - F2 F3 . . B2 - . B3 -^
        worker 2 | . . F0 B0 - F1 B1 -^ K0:1 K1:1 V1:1 - . . F2 B2 - F3 B3 -^
        """)


@given(st.integers(2, 5), st.integers(1, 6))
def test_pipefisher_does_k_fac_in_the_fewest_batches_bubbles(p: int, m: int) -> None:
    schedule = schedules.pipefisher(p, m)
    batches = len(schedule.batch_stops)
    check(schedule, joint_updates=True)
    assert check(schedule).peak_versions == (1,) * p
    assert makespan(schedule.take(2 * batches)) == makespan(schedules.flush(p, m).take(2 * batches))
    for stage, tasks in enumerate(schedule.period):
        at = {(t.op, t.microbatch): n for n, t in enumerate(tasks)}
        for k in range(m):
            assert at[CURVATURE, k] > at[Op.BACKWARD, k]
            assert at[INVERSION, m - 1] > at[CURVATURE, k]
        assert sum(t.op in (CURVATURE, INVERSION) for t in tasks) == m + 1
        assert {t.stage for t in tasks} == {stage}
    assert 3 * (p - 1) * batches >= m + 2, "idle slots that a worker of 1F1B has a batch"


@given(names, st.integers(1, 4), st.integers(1, 6), st.data())
def test_early_recomputation_takes_no_longer_than_late(
    name: str, p: int, m: int, data: st.DataObject
) -> None:
    """Late is what a plan's recompute does: right before the backward, once the worker is free."""
    plain = METHODS[name](p, m).take(1)
    stages = data.draw(st.sets(st.sampled_from(range(plain.stages)), min_size=1))
    early = schedules.recomputed(plain, stages)
    report = check(early, joint_updates=True)
    assert makespan(plain) <= makespan(early) <= makespan(late(plain, stages))
    for tasks, flying in zip(early.workers, report.in_flight, strict=True):
        assert flying.tolist() == in_flight(tasks)
        at = {task[:3]: n for n, task in enumerate(tasks)}
        found = [t for t in tasks if t.op is Op.RECOMPUTE]
        backwards = [t for t in tasks if t.op in (Op.BACKWARD, Op.BACKWARD_INPUT)]
        assert sorted(t[1:3] for t in found) == sorted(
            t[1:3] for t in backwards if t.stage in stages
        )
        for task in found:
            there = at[Op.FORWARD, *task[1:3]], at[task[:3]]
            assert there[0] < there[1]
        assert all(at[Op.RECOMPUTE, *t[1:3]] < at[t[:3]] for t in backwards if t.stage in stages)
    assert parse(str(early)) == early == read_csv(early.to_csv())


def late(plain: Schedule, stages: set[int]) -> Schedule:
    """Return a table in which stages recompute right before each backward."""

    def again(task: Task) -> Iterator[Task]:
        if task.op in (Op.BACKWARD, Op.BACKWARD_INPUT) and task.stage in stages:
            yield task._replace(op=Op.RECOMPUTE)
        yield task

    return Schedule(tuple(tuple(chain(*map(again, tasks))) for tasks in plain.workers))


def test_the_first_stage_of_gpipe_recomputes_for_nothing() -> None:
    plain = schedules.gpipe(4, 8).take(2)
    assert makespan(plain) == makespan(schedules.recomputed(plain, [0])) == 66
    assert makespan(late(plain, {0})) == 66 + 2 * 7  # each batch's backwards but one wait for it


def test_an_idle_slot_holds_one_recomputation() -> None:
    plain = schedules.v_half(4, 2).take(1)
    assert makespan(schedules.recomputed(plain, [0, 1])) <= makespan(late(plain, {0, 1}))


def test_what_has_no_room_is_named() -> None:
    with pytest.raises(ScheduleError, match=r"left for J0 .* at a time than 3, flush.*take\(6\)"):
        schedules.filled(schedules.flush(1, 4).take(3).repeat(), once_a_batch)
    with pytest.raises(ScheduleError, match="J0 of stage 1 cannot fill idle time of a worker with"):
        schedules.filled(schedules.flush(2, 2), lambda task: [Task(WORK, 1, 0, 0)][task.stage :])
    with pytest.raises(ScheduleError, match="no whole batches to change: use a method that fl"):
        schedules.recomputed(schedules.pipedream(2), [0])
    with pytest.raises(ScheduleError, match="has stages 0 to 1, and not 2"):
        schedules.recomputed(schedules.flush(2, 4), [1, 2])
    with pytest.raises(ScheduleError, match="one stage has no bubbles"):
        schedules.pipefisher(1, 4)
