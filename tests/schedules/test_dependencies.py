"""The graph of a table: who needs whom, by the figures and by brute force."""

import pickle

import pytest
from hypothesis import given

from pipekit.schedules import Op, Payload, Schedule, ScheduleError, Task, flush, parse
from pipekit.schedules.dependencies import NOBODY, NOTHING, Dependencies
from pipekit.schedules.ops import PASSES
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
    ) as error:
        _ = schedule.dependencies
    assert error.value.tasks == (Task(F, 0, 0, 0), Task(F, 0, 0, 0))
    assert error.value.workers == (0, 1)


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
