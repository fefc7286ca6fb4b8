"""What repeats a batch is treated as if every batch were written down."""

import pickle
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipekit import schedules
from pipekit.schedules import Repeated, Schedule, ScheduleError
from tests.schedules.strategies import SLIPS, Slip

FLUSHED = [
    schedules.gpipe(2, 3, 3),
    schedules.flush(3, 4, 2),
    schedules.flush(1, 1, 4),
    schedules.interleaved(4, 4, 2, workers=2),
    schedules.zb_h2(3, 6, 2),
    schedules.chimera(4, 4, 3),
    schedules.dualpipe(4, 8, 2),
    schedules.v_half(4, 4, 2),
    schedules.replicate(schedules.flush(2, 3, 3), 2),
    schedules.replicate(schedules.gpipe(2, 2, 2), 3),
    schedules.inference(3, 5),
]
each_flushed = pytest.mark.parametrize("schedule", FLUSHED, ids=lambda s: s.name)


def written_down(schedule: Schedule) -> Schedule:
    """Return the same schedule with every task in a tuple."""
    return replace(schedule, workers=tuple(map(tuple, schedule.workers)))


def outcome(schedule: Schedule) -> list[object]:
    """Return all that is made of a schedule before it runs, or the error."""
    found: list[object] = []
    for joint in (False, True):
        try:
            report = schedules.check(schedule, capacity=1, joint_updates=joint)
        except ScheduleError as error:
            found.append((str(error), error.tasks, error.workers))
        else:
            found.append([each.tolist() for each in (*report.versions, *report.in_flight)])
            found += [schedules.lower(schedule, [(0, schedule.stages - 1)])]
            found += [schedules.sums(schedule), schedules.sum_order(schedule, joint)]
            found += [schedule.updates, schedule.batches, schedule.stage_workers]
            found += [schedule.stages, schedule.microbatches, schedule.trains]
            found += [schedules.loss_versions(schedule) if schedule.trains else ()]
    return found


@each_flushed
def test_it_is_equal_to_all_of_its_tasks(schedule: Schedule) -> None:
    plain = written_down(schedule)

    assert schedule == plain
    assert plain == schedule
    assert hash(schedule) == hash(plain)
    assert str(schedule) == str(plain)
    assert schedule != replace(schedule, workers=(schedule.workers[0][:-1], *schedule.workers[1:]))
    assert pickle.loads(pickle.dumps(schedule)) == schedule


@each_flushed
def test_what_follows_from_one_batch_is_what_follows_from_all(schedule: Schedule) -> None:
    assert schedule.period is not None
    assert written_down(schedule).period is None
    assert outcome(schedule) == outcome(written_down(schedule))


@given(st.sampled_from(FLUSHED[:-1]), st.sampled_from(SLIPS), st.data())
def test_what_is_wrong_with_one_batch_is_told_of_all(
    schedule: Schedule, slip: Slip, data: st.DataObject
) -> None:
    first = [tasks for tasks in schedule.workers if isinstance(tasks, Repeated)]
    units = [list(tasks.unit) for tasks in first]
    slip(data, units)

    workers = tuple(one.like(unit) for one, unit in zip(first, units, strict=True))
    broken = replace(schedule, workers=workers, overlaps=frozenset())

    assert outcome(broken) == outcome(written_down(broken))


def test_an_item_is_made_as_it_is_asked_for() -> None:
    tasks = schedules.flush(2, 4, 5).workers[0]
    everything = tuple(tasks)

    assert [tasks[place] for place in range(len(tasks))] == list(everything)
    assert tasks[-1] == everything[-1]
    assert tasks[7:30:3] == everything[7:30:3]
    with pytest.raises(IndexError):
        tasks[len(tasks)]


def test_the_last_steps_of_a_long_run_are_there_at_once() -> None:
    last = schedules.lower(schedules.flush(2, 8, 10**6))[1][-1]

    assert last.task == (schedules.Op.UPDATE, 1, 8 * 10**6 - 1, 10**6)
