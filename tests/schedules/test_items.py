"""Ops beside the passes: what is where when, held against a judge that moves things tick by tick."""

import pickle
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipekit import schedules
from pipekit.schedules import (
    DISCARD,
    GATHER,
    LOAD,
    OFFLOAD,
    Item,
    Op,
    Schedule,
    ScheduleError,
    Task,
    check,
    flush,
    parse,
    read_csv,
    slots,
)
from pipekit.schedules.ops import PASSES
from tests.schedules.reference import executable, refusal
from tests.schedules.strategies import Slip, drop, move, slipped, swap

F, B, R = Op.FORWARD, Op.BACKWARD, Op.RECOMPUTE
COPY = Op("Y", "COPY", needs=F.gives, stream="copy", slots=2)
EXTRA = OFFLOAD, LOAD, OFFLOAD.to(1), LOAD.to(1), GATHER, DISCARD, R, COPY


def one_worker(cells: str) -> Schedule:
    return parse(f"worker 0 | {cells}^")


def place(task: Task, item: Item) -> tuple[object, ...]:
    """Return what an item of a task is called: one a stage, or one a microbatch there."""
    microbatch = task.microbatch if item.each == "microbatch" else None
    return item, task.stage, microbatch, task.op.peer if item.is_away else None


def first_unmet(tasks: tuple[Task, ...]) -> Task | None:
    """Return the first task of a worker's list that lacks something, playing the list in order."""
    moved = {place(t, i) for t in tasks if t.op.is_pass for i in (*t.op.gives, *t.op.takes)}
    there: dict[tuple[object, ...], int] = {}
    for task in tasks:
        for item in (*task.op.needs, *task.op.takes):
            name = place(task, item)
            if item.each == "stage" and name not in moved:
                continue
            old = item.name == "weights" and there.get(name) != task.version
            if name not in there or old:
                return task
        for item in task.op.takes:
            there.pop(place(task, item), None)
        for item in task.op.gives:
            there[place(task, item)] = task.version
    return None


def ticking(schedule: Schedule) -> list[list[tuple[int, int]]]:
    """Return when each task runs: every tick, every stream begins what it can.

    Of two tasks of a worker that touch an item, and one of which takes it or needs what the other
    gives, the one that stands first in the list is over before the other begins.
    """
    when: dict[tuple[int, int], tuple[int, int]] = {}
    where = {(t.op, t.stage, t.microbatch): (w, n) for w, n, t in numbered(schedule)}
    done = 0
    for now in range(200):
        for _ in range(4):  # tasks that take no time make others possible in the same tick
            for worker, tasks in enumerate(schedule.workers):
                for number, task in enumerate(tasks):
                    if (worker, number) in when:
                        continue
                    before = [
                        n for n in range(number) if is_before(tasks[n], task, tasks[n:number])
                    ]
                    needed = [(worker, n) for n in before] + sources(schedule, task, where)
                    if all(each in when and when[each][1] <= now for each in needed):
                        when[worker, number] = now, now + task.op.slots
                        done += 1
    assert done == sum(map(len, schedule.workers)), "deadlock"
    return [[when[w, n] for n in range(len(tasks))] for w, tasks in enumerate(schedule.workers)]


def is_before(one: Task, other: Task, between: tuple[Task, ...]) -> bool:
    if one.op.stream == other.op.stream:
        return True
    if other.op.stream and not one.op.stream and not any(not t.op.stream for t in between[1:]):
        return True  # the last of the worker's own stream before it
    wants = {place(other, i) for i in (*other.op.needs, *other.op.takes)}
    given, used = ({place(one, i) for i in items} for items in (one.op.gives, one.op.needs))
    again = {place(t, i) for t in between[1:] for i in t.op.gives}
    return bool((wants & given) - again) or bool(
        {place(other, i) for i in other.op.takes} & used - again
    )


def numbered(schedule: Schedule) -> list[tuple[int, int, Task]]:
    return [(w, n, t) for w, tasks in enumerate(schedule.workers) for n, t in enumerate(tasks)]


def sources(
    schedule: Schedule, task: Task, where: dict[tuple[Op, int, int], tuple[int, int]]
) -> list[tuple[int, int]]:
    op, stage, microbatch, _ = task
    if op is F and stage:
        return [where[F, stage - 1, microbatch]]
    if op is B and stage + 1 < schedule.stages:
        return [where[B, stage + 1, microbatch]]
    return []


@st.composite
def tables(draw: st.DrawFn) -> Schedule:
    """1F1B on two workers, with some tasks more: at places where they can be, then at any."""
    schedule = flush(2, 3).take(1)
    lists = [list(tasks) for tasks in schedule.workers]
    for microbatch in draw(st.lists(st.integers(0, 2), max_size=3, unique=True)):
        worker = draw(st.integers(0, 1))
        tasks, peer = lists[worker], draw(st.sampled_from([None, 1 - worker]))
        out_op, back = (OFFLOAD, LOAD) if peer is None else (OFFLOAD.to(peer), LOAD.to(peer))
        first, last = (tasks.index(Task(op, worker, microbatch, 0)) for op in (F, B))
        out = draw(st.integers(first + 1, last))
        for op, at in ((back, draw(st.integers(out, last))), (out_op, out)):
            tasks.insert(at, Task(op, worker, microbatch, 0))
    for _ in range(draw(st.integers(0, 2))):
        worker = draw(st.integers(0, 1))
        op, microbatch = draw(st.sampled_from(EXTRA)), draw(st.integers(0, 2))
        at = draw(st.integers(0, len(lists[worker]) - 1))
        lists[worker].insert(at, Task(op, worker, microbatch, 0))
    return replace(schedule, head=tuple(map(tuple, lists)))


@pytest.mark.hypothesis
@given(tables())
def test_a_table_is_refused_exactly_where_a_task_lacks_something(table: Schedule) -> None:
    twice = len({t for _, _, t in numbered(table) if t.op.is_once}) < sum(
        t.op.is_once for _, _, t in numbered(table)
    )
    unmet = [task for tasks in table.workers if (task := first_unmet(tasks))]
    why = refusal(lambda: check(table))
    itself = any(task.op.peer == worker for worker, _, task in numbered(table))
    assert (why is not None) == bool(twice or unmet or itself)
    if why is None:
        found = [each.astype(int).tolist() for each in slots(table)]
        assert found == [[list(pair) for pair in row] for row in ticking(table)]
        for again in (parse(str(table)), read_csv(table.to_csv())):
            assert again.head == table.head


def test_an_offloaded_microbatch_is_not_in_flight() -> None:
    table = one_worker("F0/O0 F1/L0 B0 - B1 -")
    assert check(table).in_flight[0].tolist() == [1, 0, 1, 2, 1, 0, 0]
    assert str(table).splitlines()[-1] == "worker 0 | F0/O0 F1/L0 .     B0    -     B1    -^"


@pytest.mark.parametrize(
    ("cells", "says"),
    [
        ("F0/L0 B0 -", "L0 of stage 0, which needs offloaded activations there, and no task"),
        ("F0/O0 B0 -", "B0 of stage 0, which needs activations there, and O0 of stage 0 has taken"),
        ("./G0 F0/D0/G0/D0/G0 F0 B0 -", "F0 of stage 0 stands in the table twice"),
        ("F0/D0 B0 -", "F0 of stage 0, which needs weights there, and no task before it gives"),
        ("./G0 F0/D0 B0 -", "B0 of stage 0, which needs weights there, and D0 of stage 0 has"),
        ("./G0 F0 B0 -^ F1 B1 -", "F1 of stage 0, which needs weights there, and G0 of stage 0"),
        ("R0 F0 B0 -", "R0 of stage 0, which needs activations there, and no task before it gives"),
    ],
)
def test_what_is_not_there_is_named(cells: str, says: str) -> None:
    with pytest.raises(ScheduleError, match=says):
        check(one_worker(cells))


def test_an_update_waits_for_the_sum_of_its_gradients() -> None:
    table = one_worker("F0 B0 -/S0")
    (times,) = slots(table)
    assert [t.label for t in table.workers[0]] == ["F0", "B0", "S0", "U1"]
    np.testing.assert_array_equal(times[2:], [[3, 4], [4, 4]])


def test_an_op_of_ones_own_is_a_row() -> None:
    statistics = Item("statistics")
    probe = Op("P", "PROBE", needs=(Op.FORWARD.gives[0],), gives=(statistics,))
    quantiles = Op("Q", "QUANTILES", takes=(statistics,), slots=2)
    table = one_worker("F0 P0 B0 - Q0 -")
    assert [task.op for task in table.workers[0]] == [F, probe, B, quantiles, Op.UPDATE]
    check(table)
    with pytest.raises(ScheduleError, match="Q0 of stage 0, which needs statistics there"):
        check(one_worker("F0 B0 - Q0 -"))
    with pytest.raises(ValueError, match="a letter and a name of their own: free are"):
        Op("P", "PEELING")
    with pytest.raises(ValueError, match=r"QUANTILES \(Q\) is there with another row"):
        Op("Q", "QUANTILES", takes=(statistics,), slots=3)
    again = Op("Q", "QUANTILES", takes=(Item("statistics"),), slots=2)  # a cell that runs twice
    assert table.workers[0][3].op is again
    assert pickle.loads(pickle.dumps(probe)) is probe
    assert Op.named("LOAD_977") is LOAD.to(977)  # as in a CSV that another process wrote


def test_a_row_that_cannot_be_is_refused_and_leaves_nothing_behind() -> None:
    wrong: list[dict[str, Any]] = [{"slots": -2}, {"slots": 1.5}]
    for each in (*wrong, {"gives": Item("one")}, {"is_pass": False}):
        with pytest.raises(ValueError, match=r"WRONG (must be a|cannot make weight versions)"):
            Op("N", "WRONG", **each)
    with pytest.raises(KeyError):
        Op.named("WRONG")
    with pytest.raises(ScheduleError, match=r"cannot read 'B0>1': BACKWARD \(B\) has no peer"):
        parse("worker 0 | F0 B0>1 -^\nworker 1 | F0 B0 -^")


def test_an_update_sums_whole_microbatches() -> None:
    title = "# Seq1F1B; 2 chunks a microbatch\n"
    with pytest.raises(ScheduleError, match="in the middle of a microbatch of 2"):
        check(parse(title + "worker 0 | F0.0 F0.1 F1.0 B0.1 - B0.0 - B1.0 -^"))
    with pytest.raises(ScheduleError, match=r"for B1 of stage 0, .*counted in chunks, 2 a"):
        check(parse(title + "worker 0 | F0.0 F0.1 B0.0 - B0.1 -^"))


def test_a_backward_waits_until_a_copy_has_read_what_it_frees() -> None:
    (times,) = slots(one_worker("F0/Y0 B0 -"))
    assert times.tolist() == [[0, 1], [1, 3], [3, 5], [5, 5]]


TABLES: dict[str, Schedule] = {
    "bpipe": schedules.bpipe(4, 5).take(1),
    "pipe_offload": schedules.pipe_offload(4, 4, workers=2, offloaded_stages=2).take(1),
    "sharded_bfs": schedules.sharded_bfs(6, 2, workers=2).take(1),
    "pipefisher": schedules.pipefisher(3, 2).take(2),
    "recomputed": schedules.recomputed(schedules.zb_h1(3, 3), range(3)).take(1),
}


def is_right(schedule: Schedule) -> bool:
    """Whether the passes can run, every task has what it needs, and sums lack no gradient.

    Other work, too, reads a version of the weights only after the update that makes it.
    """
    passes = tuple(
        tuple(task for task in tasks if task.op in (*PASSES, Op.UPDATE))
        for tasks in schedule.workers
    )
    return (
        executable(Schedule(passes))
        and all(first_unmet(tasks) is None for tasks in schedule.workers)
        and not any(map(sums_too_early, schedule.workers))
        and not any(map(reads_too_early, schedule.workers))
    )


def reads_too_early(tasks: tuple[Task, ...]) -> bool:
    """Whether a task names a version of the weights that no update before it has made."""
    made = {(task.stage, 0) for task in tasks}
    for task in tasks:
        if task.op is Op.UPDATE:
            made.add((task.stage, task.version))
        elif (task.stage, task.version) not in made:
            return True
    return False


def sums_too_early(tasks: tuple[Task, ...]) -> bool:
    """Whether a backward comes between a stage's sum and its update."""
    summed: set[int] = set()
    lacking: set[int] = set()
    for task in tasks:
        if task.op is schedules.SUM:
            summed.add(task.stage)
            lacking.discard(task.stage)
        elif task.op.adds_gradient and task.stage in summed:
            lacking.add(task.stage)
        elif task.op is Op.UPDATE and task.stage in lacking:
            return True
    return False


@given(st.data(), st.sampled_from(sorted(TABLES)), st.sampled_from([drop, move, swap]))
def test_a_damaged_table_is_refused_exactly_where_it_is_wrong(
    data: st.DataObject, name: str, slip: Slip
) -> None:
    damaged = slipped(data, TABLES[name], slip)
    why = refusal(lambda: check(damaged))
    assert (why is None) == is_right(damaged), why


def test_the_judge_finds_them_right() -> None:
    assert all(map(is_right, TABLES.values()))
