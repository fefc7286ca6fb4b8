"""Replaying a schedule: an order in which everything can run, whoever is faster."""

from collections import Counter
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipekit.schedules import Op, Schedule, ScheduleError, Task, gpipe, inference, parse
from pipekit.schedules.dependencies import NOTHING
from pipekit.schedules.replay import Replay
from tests.schedules.examples import replay
from tests.schedules.reference import Key, halves, key, needs
from tests.schedules.strategies import methods

F, B = Op.FORWARD, Op.BACKWARD


@given(methods, st.one_of(st.none(), st.integers(1, 3)))
def test_every_task_comes_once_after_all_it_needs(schedule: Schedule, capacity: int | None) -> None:
    done: set[Key] = set()
    positions = [count() for _ in schedule.workers]
    for worker, position, task in replay(schedule, capacity):
        assert position == next(positions[worker])
        assert task == schedule.workers[worker][position]
        assert done.issuperset(needs(task, schedule.stages, halves(schedule)))
        done.add(key(task))
    ends = [next(position) for position in positions]
    assert ends == [len(tasks) for tasks in schedule.workers]


@given(methods)
def test_no_link_ever_holds_more_than_its_capacity(schedule: Schedule) -> None:
    graph = schedule.dependencies
    under_way: Counter[tuple[int, int]] = Counter()
    for worker, position, _ in replay(schedule, capacity=1):
        number = graph.first[worker] + position
        source, target = graph.source[number], graph.target[number]
        if source != NOTHING:
            under_way[graph.worker_of[source], worker] -= 1
        if target != NOTHING:
            link = worker, graph.worker_of[target]
            under_way[link] += 1
            assert under_way[link] <= 1
    assert not any(under_way.values())


def test_an_unfinished_replay_says_where_every_worker_stands() -> None:
    steps = replay(parse("worker 0 | F0 B0^\nworker 1 | B0 F0^0"))
    assert next(steps)[2] == Task(F, 0, 0, 0)
    with pytest.raises(ScheduleError) as error:
        list(steps)
    assert str(error.value) == (
        "the schedule can never finish: "
        "worker 0 waits in B0 of stage 0 for B0 of stage 1, which worker 1 has; "
        "worker 1 waits in B0 of stage 1 for F0 of stage 1, which comes later in its own list"
    )


def test_what_no_worker_has_is_said_so() -> None:
    with pytest.raises(ScheduleError, match="F0 of stage 1 for F0 of stage 0, which no worker has"):
        list(replay(parse("worker 0 stage 1 | F0 F1")))


def test_replays_are_lazy_and_independent() -> None:
    schedule = gpipe(2, 2).take(1)
    one, other = replay(schedule), replay(schedule)
    assert list(one) == list(other)
    assert next(replay(inference(1).take(1))) == (0, 0, Task(F, 0, 0, 0))


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ([(1, 1), (2, 2), (3, 3)], True),  # behind each period nobody has a task left
        ([(1, 1), (1, 2), (1, 3), (1, 4)], False),  # worker 1 waits for ever more forwards
        ([(1, 1), (1, 2), (2, 3)], True),  # for one forward, and again for one
        ([(1, 2)], False),  # a single period says nothing of the next
    ],
)
def test_workers_settle_once_they_wait_for_no_more_than_a_period_before(
    counts: list[tuple[int, int]], expected: bool
) -> None:
    graph = gpipe(2, 4).take(1).dependencies
    ends = [[first + n for first, n in zip(graph.first, each, strict=False)] for each in counts]
    assert Replay(graph).settles(ends) == expected
