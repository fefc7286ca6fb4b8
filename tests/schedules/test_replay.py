"""The graph of a table, who needs whom, and its replay: an order in which everything can run."""

import pickle
from itertools import count

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipekit.schedules import (
    Op,
    Payload,
    Schedule,
    ScheduleError,
    Task,
    check,
    dualpipe_v,
    flush,
    gpipe,
    parse,
    read_csv,
    slots,
)
from pipekit.schedules.dependencies import NOBODY, NOTHING, Dependencies
from pipekit.schedules.ops import PASSES
from pipekit.schedules.replay import Replay
from tests.schedules.examples import replay
from tests.schedules.reference import Key, halves, key, needs
from tests.schedules.strategies import methods

F, B, BI, BW, U = *PASSES, Op.UPDATE


def edges(graph: Dependencies, ends: list[int]) -> dict[Key, Key | None]:
    """Return what each pass is joined to."""
    return {
        key(task): None if end == NOTHING else key(graph.tasks[end])
        for task, end in zip(graph.tasks, ends, strict=True)
        if task.op.is_pass
    }


def test_a_split_backward_sends_its_first_part_on_and_sums_its_second() -> None:
    graph = parse("worker 0 | F0 I0 W0^\nworker 1 | F0 B0^").dependencies
    assert edges(graph, graph.source)[BI, 0, 0] == (B, 1, 0)
    assert edges(graph, graph.target)[B, 1, 0] == (BI, 0, 0)
    assert edges(graph, graph.own)[BW, 0, 0] == (BI, 0, 0)
    assert [graph.tasks[row[0]].op for row in graph.adders] == [BW, B]
    assert [graph.tasks[row[0]].op for row in graph.senders[Payload.GRADIENT]] == [BI, B]


def test_an_update_is_joined_to_what_it_sums_only() -> None:
    graph = parse("worker 0 | F0 F1 I0 B1 W0^").dependencies
    update = graph.tasks.index(Task(U, 0, 1, 1))
    assert (graph.own[update], graph.source[update], graph.target[update]) == (NOTHING,) * 3
    assert [str(graph.tasks[n]) for n in graph.summed(update)] == ["W0 of stage 0", "B1 of stage 0"]


@given(methods)
def test_a_task_needs_what_brute_force_says(schedule: Schedule) -> None:
    graph, split = schedule.dependencies, halves(schedule)
    for number, task in enumerate(graph.tasks):
        if task.op is U:
            summed = {key(graph.tasks[n]) for n in graph.summed(number)}
            assert summed <= set(needs(task, schedule.stages, split))
            continue
        found = {graph.own[number], graph.source[number]} - {NOTHING}
        assert {key(graph.tasks[end]) for end in found} == set(needs(task, schedule.stages, split))
    ends = {source: n for n, source in enumerate(graph.source) if source != NOTHING}
    assert ends == {n: target for n, target in enumerate(graph.target) if target != NOTHING}


def test_a_partly_filled_table_says_what_nobody_has() -> None:
    graph = parse("worker 0 | F0 F2 B0\nworker 1 | F0").dependencies
    assert graph.row(F, 0) == [0, NOBODY, 1]
    assert graph.row(B, 0) == [2, NOBODY, NOBODY]
    assert graph.row(F, 1) == [3, NOBODY, NOBODY]
    assert graph.source[2] == NOBODY
    assert graph.target[1] == NOBODY


def test_a_double_is_named_with_both_workers() -> None:
    schedule = Schedule(((Task(F, 0, 0, 0),), (Task(F, 0, 0, 0),)))
    with pytest.raises(
        ScheduleError, match="F0 of stage 0 stands in the table twice: on worker 0 and on worker 1"
    ):
        _ = schedule.dependencies


@pytest.mark.parametrize(
    ("row", "both"),
    [
        ("F0 B0 I0 W0^", "B0 of stage 0 and I0 of stage 0"),
        ("F0 W0 B0^", "W0 of stage 0 and B0 of stage 0"),
    ],
)
def test_a_backward_is_whole_or_in_parts(row: str, both: str) -> None:
    with pytest.raises(ScheduleError, match=f"the table has both {both}: a backward is whole, or"):
        _ = parse(f"worker 0 | {row}").dependencies


def test_a_pickled_schedule_has_no_graph_in_it() -> None:
    schedule = flush(4, 8).take(4)
    before = len(pickle.dumps(schedule))
    assert schedule.dependencies.stages == 4
    assert len(pickle.dumps(schedule)) == before
    assert pickle.loads(pickle.dumps(schedule)) == schedule


@given(methods)
def test_every_task_comes_once_after_all_it_needs(schedule: Schedule) -> None:
    done: set[Key] = set()
    positions = [count() for _ in schedule.workers]
    for worker, position, task in replay(schedule):
        assert position == next(positions[worker])
        assert task == schedule.workers[worker][position]
        assert done.issuperset(needs(task, schedule.stages, halves(schedule)))
        done.add(key(task))
    ends = [next(position) for position in positions]
    assert ends == [len(tasks) for tasks in schedule.workers]


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


@given(methods, st.tuples(*[st.floats(0.1, 9)] * 4), st.floats(0, 9))
def test_every_task_starts_as_soon_as_worker_and_data_are_there_and_not_before(
    schedule: Schedule, lengths: tuple[float, float, float, float], update: float
) -> None:
    durations = {**dict(zip(PASSES, lengths, strict=True)), Op.UPDATE: update}
    times = slots(schedule, durations)
    ends = {
        task[:3]: end
        for tasks, spans in zip(schedule.workers, times, strict=True)
        for task, (_, end) in zip(tasks, spans.tolist(), strict=True)
        if task.op is not Op.UPDATE
    }
    for tasks, spans in zip(schedule.workers, times, strict=True):
        free = 0.0
        for task, (start, end) in zip(tasks, spans.tolist(), strict=True):
            ready = max(
                [0.0, *(ends[need] for need in needs(task, schedule.stages, halves(schedule)))]
            )
            assert start == max(free, ready)
            assert end == start + durations[task.op]
            free = end


def test_one_array_of_starts_and_ends_a_worker() -> None:
    times = slots(Schedule((gpipe(1, 2).take(1).workers[0], ())))
    assert [array.shape for array in times] == [(5, 2), (0, 2)]
    assert all(array.dtype == np.float64 for array in times)
    assert slots(Schedule(())) == []


ALONE = "worker 0 | F0 F1& B0 - B1 -^"


def test_a_pair_is_a_forward_and_the_backward_behind_it() -> None:
    schedule = parse(ALONE)
    ((one, other),) = schedule.overlaps
    assert (one.op, one.microbatch, other.op, other.microbatch) == (Op.FORWARD, 1, Op.BACKWARD, 0)
    assert schedule.dependencies.partner == [-1, 2, 1, -1, -1]
    assert schedule != Schedule(schedule.workers)
    check(schedule)


def test_it_is_drawn_and_written_as_it_was_read() -> None:
    schedule = parse(ALONE)
    assert str(schedule).splitlines()[2] == "worker 0 | F0  F1& B0  -   B1  -^"
    assert "worker,op,stage,microbatch,version,overlaps\n" in schedule.to_csv()
    assert "0,FORWARD,0,1,0,1\n" in schedule.to_csv()
    assert read_csv(schedule.to_csv()) == schedule


def test_both_take_their_share_of_the_time_together() -> None:
    times = slots(parse(ALONE), overlap=0.5)[0]
    assert times.tolist() == [[0, 1], [1, 1.5], [1.5, 2.5], [2.5, 4.5], [4.5, 4.5]]


def test_who_waits_for_data_that_only_both_give_waits_for_ever() -> None:
    apart = "worker 0 | F0 F1 B0 B1^\nworker 1 | F0 F1 B0 B1^"
    check(parse(apart))
    with pytest.raises(ScheduleError, match=r"worker 0 waits in F1 of stage 0 for B0 of stage 1"):
        check(parse(apart.replace("F1", "F1&", 1)))


@pytest.mark.parametrize(
    ("picture", "says"),
    [
        ("worker 0 | F0& B0^", "can never finish"),
        ("worker 0 | F0& F1 B0 B1^", "F0 of stage 0 and F1 of stage 0 cannot run together"),
        ("worker 0 | F0 B0 F1 B1&^", "B1 of stage 0 and U1 of stage 0 cannot run together"),
        ("worker 0 | F0 B0 F1&", "line 1: nothing follows F1& to run together with"),
    ],
)
def test_what_cannot_run_together_is_refused(picture: str, says: str) -> None:
    with pytest.raises(ScheduleError, match=says):
        check(parse(picture))


def test_what_is_not_side_by_side_is_refused() -> None:
    whole = parse("worker 0 | F0 F1 B0 B1^")
    first, _, _, last, _ = whole.workers[0]
    with pytest.raises(ScheduleError, match="F0 of stage 0 and B1 of stage 0 cannot run together"):
        check(Schedule(whole.workers, overlaps=frozenset({(first, last)})))


def test_the_last_task_of_a_csv_has_nothing_to_run_together_with() -> None:
    lines = dualpipe_v(2, 2).take(1).to_csv().splitlines()
    with pytest.raises(ScheduleError, match="the last task of worker 0 in the CSV"):
        read_csv("\n".join([*lines[:-1], lines[-1][:-1] + "1"]) + "\n")
