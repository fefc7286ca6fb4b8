"""What may run before an update is validated; the judge follows every dependency by itself."""

from functools import cache

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from pipekit import schedules
from pipekit.engine.combinations import require_joint_updates
from pipekit.schedules import Op, Schedule, ScheduleError, lower
from pipekit.schedules.lowering.validation import validation_waits, validations
from tests.schedules.examples import LATE_UPDATE
from tests.schedules.methods.test_all_methods import METHODS
from tests.schedules.strategies import training_methods


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
    graph, steps = schedule.dependencies, lower(schedule)

    @cache
    def newest(number: int) -> int:
        """The newest version on which a pass depends, by all that it needs."""
        if number < 0:
            return 0
        version = graph.tasks[number].version
        return max(version, newest(graph.own[number]), newest(graph.source[number]))

    again: list[set[object]] = [set() for _ in steps]
    for worker, (own, found) in enumerate(zip(steps, validations(schedule, steps), strict=True)):
        pending = made = 0
        for number, step in enumerate(own.head, graph.first[worker]):
            task = step.task
            if task in found.before:
                assert found.before[task] == pending
                pending = 0
            if not task.op.is_pass:
                pending = task.version if task.version > made else pending
                made = task.version
            elif pending and newest(number) == pending:
                assert found.speculative[task] == pending
                assert task.op is Op.FORWARD
                assert step.sends
                for message, receiver in step.sends:
                    again[receiver].add(message)
            else:
                assert newest(number) <= made
                assert task not in found.speculative
    for own_again, found in zip(again, validations(schedule, steps), strict=True):
        assert own_again == set(found.again)


def test_flush_goes_on_with_the_forwards_of_its_warm_up() -> None:
    """Two workers: the first runs two forwards on unvalidated weights, the last one none."""
    schedule = schedules.flush(2, 3).take(2)
    first, last = validations(schedule, lower(schedule))
    assert {task.label: update for task, update in first.speculative.items()} == {"F3": 1, "F4": 1}
    assert {task.label for task in first.before} == {"B3"}
    assert not last.speculative
    assert {task.label for task in last.before} == {"F3"}
    assert {message.microbatch for message in last.again} == {3, 4}


def test_a_stage_that_updates_after_the_validation_begins_none() -> None:
    """One worker: the first stage updates and goes on, and the last one updates behind its F1."""
    first, last = validation_of(LATE_UPDATE)
    assert (first, last) == ({("F1", 1)}, {("F1", 0)})


def validation_of(schedule: Schedule) -> tuple[set[tuple[str, int]], set[tuple[str, int]]]:
    """The speculative tasks, and those before which is validated, with their versions."""
    (found,) = validations(schedule, lower(schedule))
    return (
        {(task.label, task.version) for task in found.speculative},
        {(task.label, task.version) for task in found.before},
    )


@pytest.mark.parametrize("later", [False, True])
def test_every_update_but_the_last_is_waited_for_by_every_worker(later: bool) -> None:
    schedule = schedules.zb_h2(3, 4).take(3)
    waits = validation_waits(schedule, later)
    of_worker = {(schedule.dependencies.worker_of[n], update) for n, update in waits.items()}
    assert of_worker >= {(worker, update) for worker in range(3) for update in (1, 2)}
