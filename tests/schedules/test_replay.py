"""Replaying a schedule: an order in which everything can run, whoever is faster."""

from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipekit.schedules import Op, Schedule, ScheduleError, Task, gpipe, inference, parse
from pipekit.schedules.replay import NOBODY, consumer, owners, producer, replay
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
    who = owners(schedule)
    under_way: dict[tuple[int, int], int] = {}
    for worker, _, task in replay(schedule, capacity=1):
        source, destination = producer(task, schedule.stages), consumer(task, schedule.stages)
        if source is not None:
            under_way[who[source][task.microbatch], worker] -= 1
        if destination in who:
            link = worker, who[destination][task.microbatch]
            under_way[link] = under_way.get(link, 0) + 1
            assert under_way[link] <= 1
    assert not any(under_way.values())


def test_owners_of_a_partly_filled_table() -> None:
    assert owners(parse("worker 0 | F0 F2 B0\nworker 1 | F0")) == {
        (F, 0): [0, NOBODY, 0],
        (B, 0): [0, NOBODY, NOBODY],
        (F, 1): [1, NOBODY, NOBODY],
    }


def test_a_double_is_named_with_both_workers() -> None:
    schedule = Schedule(((Task(F, 0, 0, 0),), (Task(F, 0, 0, 0),)))
    with pytest.raises(
        ScheduleError, match="F0 of stage 0 stands in the table twice: on worker 0 and on worker 1"
    ):
        owners(schedule)


def test_edges_of_gpipes_figure_2a() -> None:
    """Four partitions: forwards pass on to the next, backwards to the one before."""
    chain = [(F, 0), (F, 1), (F, 2), (F, 3), (B, 3), (B, 2), (B, 1), (B, 0)]
    received = {end: producer(Task(*end, 0, 0), 4) for end in chain}
    assert received == {
        (F, 0): None,
        (F, 1): (F, 0),
        (F, 2): (F, 1),
        (F, 3): (F, 2),
        (B, 3): None,  # it follows F3 on its own worker
        (B, 2): (B, 3),
        (B, 1): (B, 2),
        (B, 0): (B, 1),
    }
    for end, source in received.items():
        if source is not None:
            assert consumer(Task(*source, 0, 0), 4) == end
    assert consumer(Task(F, 3, 0, 0), 4) is None
    assert consumer(Task(B, 0, 0, 0), 4) is None


def test_an_update_sends_and_receives_nothing() -> None:
    update = Task(Op.UPDATE, 1, 0, 1)
    assert producer(update, 3) is None
    assert consumer(update, 3) is None


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


def test_nothing_has_nothing_to_replay() -> None:
    assert list(replay(Schedule(()))) == []


def test_replays_are_lazy_and_independent() -> None:
    schedule = gpipe(2, 2)
    one, other = replay(schedule), replay(schedule)
    assert list(one) == list(other)
    assert next(replay(inference(1, 1))) == (0, 0, Task(F, 0, 0, 0))
