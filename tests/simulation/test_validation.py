"""What waits for an update that is validated; the judge follows every dependency by itself."""

from functools import cache
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from pipekit import schedules, simulate
from pipekit.engine.combinations import require_joint_updates
from pipekit.profiling import LayerProfile, Profile
from pipekit.schedules import Op, Schedule, ScheduleError, zb_h1, zb_h2, zb_v
from pipekit.simulation.sums import validation_waits
from tests.schedules.examples import LATE_UPDATE
from tests.schedules.methods.test_all_methods import METHODS
from tests.schedules.strategies import training_methods

LAYER = LayerProfile("layer", 4e-3, 8e-3, backward_input_s=4e-3, backward_weight_s=4e-3)


def can_wait(schedule: Schedule) -> bool:
    try:
        require_joint_updates(schedule, "clip_norm")
    except ScheduleError:
        return False
    return True


flushed = st.builds(
    lambda name, p, m, n: METHODS[name](p, m).take(n),
    st.sampled_from(sorted(METHODS)),
    st.integers(1, 3),
    st.integers(1, 5),
    st.integers(1, 3),
)


@given(flushed | training_methods)
def test_what_depends_on_an_update_can_run_again_or_comes_after_it(schedule: Schedule) -> None:
    assume(can_wait(schedule))
    graph, waits = schedule.dependencies, validation_waits(schedule, later=True)

    @cache
    def newest(number: int) -> int:
        """The newest version on which a pass depends, by all that it needs."""
        if number < 0:
            return 0
        version = graph.tasks[number].version
        return max(version, newest(graph.own[number]), newest(graph.source[number]))

    for worker, tasks in enumerate(schedule.workers):
        pending = made = 0
        for number, task in enumerate(tasks, graph.first[worker]):
            if number in waits:
                assert waits[number] == pending
                pending = 0
            if not task.op.is_pass:
                pending = task.version if task.version > made else pending
                made = task.version
            elif pending and newest(number) == pending:
                assert task.op is Op.FORWARD
                assert graph.target[number] >= 0, "its result leaves the pipeline"
            else:
                assert newest(number) <= made


def waiting(schedule: Schedule) -> set[tuple[int, str, int]]:
    """Worker, label and version of the tasks that wait for an update's validation."""
    graph = schedule.dependencies
    waits = validation_waits(schedule, later=True)
    found = ((graph.worker_of[number], graph.tasks[number]) for number in waits)
    return {(worker, task.label, task.version) for worker, task in found}


def test_flush_goes_on_with_the_forwards_of_its_warm_up() -> None:
    """Two workers: the first runs two forwards on unvalidated weights, the last one none."""
    assert waiting(schedules.flush(2, 3).take(2)) == {(0, "B3", 1), (1, "F3", 1)}


def test_a_stage_that_updates_after_the_validation_begins_none() -> None:
    """One worker: the first stage updates and goes on, and the last one updates behind its F1."""
    assert waiting(LATE_UPDATE) == {(0, "F1", 0)}


@pytest.mark.parametrize("later", [False, True])
def test_every_update_but_the_last_is_waited_for_by_every_worker(later: bool) -> None:
    schedule = schedules.zb_h2(3, 4).take(3)
    waits = validation_waits(schedule, later)
    of_worker = {(schedule.dependencies.worker_of[n], update) for n, update in waits.items()}
    assert of_worker >= {(worker, update) for worker in range(3) for update in (1, 2)}


@pytest.mark.parametrize("make", [zb_h2, zb_v])
def test_without_a_global_stop_no_worker_idles_between_batches(make: Any) -> None:
    """What ZB-H2 and ZB-V gain is there if updates wait for nobody, or are validated later."""
    schedule = make(4, 8).take(4)
    costs = Profile((LAYER,) * 4, input_bytes=4)
    steady = {
        validate: simulate(schedule, costs, validate=validate).bubbles().loc["all", "steady"]
        for validate in (None, "first", "later")
    }
    assert steady[None] == steady["later"] == pytest.approx(0)
    assert steady["first"] > 0.02


def test_with_a_global_stop_zb_h2_takes_as_long_as_zb_h1() -> None:
    costs = Profile((LAYER,) * 4, input_bytes=4)
    seconds = {
        (make, validate): simulate(make(4, 8).take(4), costs, validate=validate).makespan_s
        for make in (zb_h1, zb_h2)
        for validate in ("first", "later")
    }
    assert seconds[zb_h2, "first"] == pytest.approx(seconds[zb_h1, "first"])
    assert seconds[zb_h2, "later"] == pytest.approx(4 * 8 * 12e-3 + 3 * 4e-3)
    assert seconds[zb_h2, "later"] < seconds[zb_h1, "later"]
