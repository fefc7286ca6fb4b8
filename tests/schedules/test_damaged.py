"""Slips of the pen in tables with other ops: refused exactly where a judge finds something wrong."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from pipekit import schedules
from pipekit.schedules import Op, Schedule, Task, check
from pipekit.schedules.ops import PASSES
from tests.schedules.reference import executable, refusal
from tests.schedules.strategies import Slip, drop, move, swap
from tests.schedules.test_items import first_unmet

TABLES: dict[str, Schedule] = {
    "bpipe": schedules.bpipe(4, 5).take(1),
    "pipe_offload": schedules.pipe_offload(4, 4, workers=2, offloaded_stages=2).take(1),
    "sharded_bfs": schedules.sharded_bfs(6, 2, workers=2).take(1),
    "pipefisher": schedules.pipefisher(3, 2).take(2),
    "recomputed": schedules.recomputed(schedules.zb_h1(3, 3), range(3)).take(1),
}


def is_right(schedule: Schedule) -> bool:
    """Whether the passes can run, every task has what it needs, and sums lack no gradient."""
    passes = tuple(
        tuple(task for task in tasks if task.op in (*PASSES, Op.UPDATE))
        for tasks in schedule.workers
    )
    return (
        executable(Schedule(passes))
        and all(first_unmet(tasks) is None for tasks in schedule.workers)
        and not any(map(sums_too_early, schedule.workers))
    )


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
    lists = [list(tasks) for tasks in TABLES[name].workers]
    slip(data, lists)
    damaged = replace(TABLES[name], head=tuple(map(tuple, lists)))
    why = refusal(lambda: check(damaged))
    assert (why is None) == is_right(damaged), why


def test_the_judge_finds_them_right() -> None:
    assert all(map(is_right, TABLES.values()))
