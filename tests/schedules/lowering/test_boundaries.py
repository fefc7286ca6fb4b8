"""Where a run can be taken up again, read off the table."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipekit import schedules
from pipekit.schedules import Op, Schedule, Task, check, lower
from pipekit.schedules.lowering.boundaries import boundaries, older_versions, steps_after


def places(schedule: Schedule, every: int | None) -> list[int]:
    return [boundary.batches for boundary in boundaries(schedule, every)]


@pytest.mark.parametrize(
    ("every", "expected"),
    [(None, [10]), (1, [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]), (4, [4, 8, 10]), (5, [5, 10]), (99, [10])],
)
def test_every_so_many_batches_and_at_the_end(every: int | None, expected: list[int]) -> None:
    assert places(schedules.flush(2, 4).take(10), every) == expected


def test_of_stages_that_average_several_minibatches_all_must_be_done() -> None:
    """On 2 and 3 workers every sixth minibatch ends an update on both stages."""
    schedule = schedules.pipedream([2, 3]).take(15)
    assert places(schedule, 1) == [6, 12, 15]
    assert places(schedule, 4) == [6, 12, 15]
    assert places(schedule, 7) == [12, 15]
    assert [boundary.versions for boundary in boundaries(schedule, 1)] == [(3, 2), (6, 4), (8, 5)]


def test_not_where_a_later_batch_has_overtaken_an_earlier_one() -> None:
    """Running statistics have then counted neither all nor none of it."""
    read = [(Op.FORWARD, 0), (Op.FORWARD, 2), (Op.BACKWARD, 2), (Op.FORWARD, 1)]
    read += [(Op.BACKWARD, 1), (Op.BACKWARD, 0)]
    tasks = [Task(op, 0, k, 0) for op, k in read] + [Task(Op.UPDATE, 0, k, k + 1) for k in range(3)]
    tasks += [Task(op, 0, 3, 3) for op in (Op.FORWARD, Op.BACKWARD)] + [Task(Op.UPDATE, 0, 3, 4)]
    schedule = Schedule((tuple(tasks),))
    check(schedule)
    assert places(schedule, 1) == [1, 3, 4]


def test_versions_that_are_still_read_after_a_boundary() -> None:
    """PipeDream on 3 stages: minibatches in flight read older weights (section 3.4); 2BW: one."""
    schedule = schedules.pipedream(3).take(8)
    cuts = boundaries(schedule, 4)
    older = [older_versions(tasks, cuts) for tasks in schedule.workers]
    assert [read[0][stage] for stage, read in enumerate(older)] == [{2, 3}, {3}, set()]
    assert all(not versions for read in older for versions in read[-1].values())
    schedule = schedules.two_bw(2, 2).take(4)
    assert [
        older_versions(tasks, boundaries(schedule, 2))[0][stage]
        for stage, tasks in enumerate(schedule.workers)
    ] == [{1}, {1}]


@given(st.integers(1, 4), st.integers(1, 7))
def test_a_method_that_flushes_leaves_no_older_version(stages: int, batches: int) -> None:
    for method in (
        schedules.gpipe(stages, 3),
        schedules.flush(stages, 3),
        schedules.replicate(schedules.flush(stages, 2), 2),
    ):
        made = method.take(batches)
        for tasks in made.workers:
            older = older_versions(tasks, boundaries(made, 1))
            assert all(not any(read.values()) for read in older)


@given(st.integers(1, 4), st.integers(2, 12), st.data())
def test_what_is_left_after_a_boundary(stages: int, minibatches: int, data: st.DataObject) -> None:
    """Later tasks, all of them, as they were; earlier ones only where weights lie, and silent."""
    schedule = schedules.pipedream(stages).take(minibatches)
    boundary = data.draw(st.sampled_from(boundaries(schedule, 1)))
    lowered = lower(schedule)
    for whole in lowered:
        before, after = whole.head, steps_after(whole, boundary).head
        later = [s for s in before if s.task.microbatch >= boundary.microbatches]
        assert [s for s in after if s.task.microbatch >= boundary.microbatches] == later
        earlier = [s for s in after if s.task.microbatch < boundary.microbatches]
        assert all(s.task.op is not Op.FORWARD for s in earlier)
        assert all(not s.receives and not s.sends for s in earlier)
        assert [s.task for s in after if s.task.op is Op.UPDATE] == [
            s.task for s in before if s.task.op is Op.UPDATE
        ]
