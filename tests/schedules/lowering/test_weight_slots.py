"""Weight slots given out like registers: as many as versions alive, none shared by two."""

import pytest
from hypothesis import given

from pipekit.schedules import Op, Schedule, ScheduleError, parse, pipedream
from pipekit.schedules.lowering.weight_slots import weight_slots
from tests.schedules.reference import versions_alive
from tests.schedules.strategies import stashing_methods, training_methods


def slots(picture: str) -> str:
    """Return the tasks of worker 0 and the slot of each."""
    tasks = parse(picture).workers[0]
    given_out = weight_slots(tasks).slots
    names = (t.op.letter + str(t.version if t.op is Op.UPDATE else t.microbatch) for t in tasks)
    return " ".join(f"{name}->{slot}" for name, slot in zip(names, given_out, strict=True))


def test_an_update_works_in_place_if_nobody_reads_the_old_version_any_more() -> None:
    assert slots("worker 0 | F0 F1 B0 B1^ F2 F3 B2 B3^") == (
        "F0->0 F1->0 B0->0 B1->0 U1->0 F2->0 F3->0 B2->0 B3->0 U2->0"
    )


def test_without_stashing_a_forwards_weights_are_overwritten_in_place() -> None:
    tasks = pipedream(3, stashing=False).take(6).workers[0]
    assert set(weight_slots(tasks).slots) == {0}


@given(stashing_methods)
def test_as_many_slots_as_versions_alive_at_the_peak(schedule: Schedule) -> None:
    for tasks in schedule.workers:
        given_out = weight_slots(tasks)
        alive = versions_alive(tasks)
        assert given_out.alive == [len(versions) for versions in alive]
        assert set(given_out.slots) == set(range(max(map(len, alive))))


@given(training_methods)
def test_a_version_stays_where_it_is_and_shares_with_no_other(schedule: Schedule) -> None:
    for tasks in schedule.workers:
        holds = {0: 0}  # slot -> the version in it
        alive = [{0}, *versions_alive(tasks)]
        for task, slot, before in zip(tasks, weight_slots(tasks).slots, alive[:-1], strict=True):
            if task.op is Op.UPDATE:
                overwritten = holds.get(slot)
                # the newest may be edited in place, when this update is its last reader
                assert overwritten not in before or overwritten == task.version - 1
                holds[slot] = task.version
            else:
                assert holds[slot] == task.version


def test_a_backward_that_would_find_its_forwards_weights_elsewhere_is_refused() -> None:
    naive = "# n; backward may read another version than forward\nworker 0 | F0 F1 B0^ B1^ F2:0"
    with pytest.raises(ScheduleError, match="B1 of stage 0 reads version 1, which does not lie"):
        weight_slots(parse(naive).workers[0])
