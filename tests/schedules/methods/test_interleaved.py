"""Interleaved 1F1B against Megatron-LM's description (SC '21, section 2.2, Figure 4)."""

from collections.abc import Mapping, Sequence
from inspect import cleandoc
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipekit.schedules import (
    Op,
    Schedule,
    ScheduleError,
    Task,
    check,
    flush,
    interleaved,
    replicate,
    slots,
)
from tests.schedules.reference import executable
from tests.schedules.strategies import microbatches, small

workers = st.integers(1, 5)
chunks = st.integers(2, 4)  # stages a worker


def test_two_workers_with_two_stages_each() -> None:
    assert str(interleaved(4, 4, workers=2).take(1)) == cleandoc("""
        # interleaved 1F1B
        time     | 1     2     3     4     5     6     7     8     9     10    11    12    13    14    15    16    17    18    19    20    21    22    23    24    25    26    27
        worker 0 | F0    F1    F0@2  F1@2  F2    .     B0@2  -     F3    B1@2  -     F2@2  B0    -     F3@2  B1    -     .     B2@2  -     .     B3@2  -     B2    -     B3    -^@2^
        worker 1 | .     F0    F1    F0@3  B0@3  -     F1@3  B1@3  -     F2    B0    -     F3    B1    -     F2@3  B2@3  -     F3@3  B3@3  -     B2    -     B3    -^@3^
        """)


@given(workers, chunks, st.integers(1, 4), small)
def test_the_order_is_megatrons_where_workers_divide_the_microbatches(
    p: int, v: int, rounds: int, batches: int
) -> None:
    """The i-th pass of a batch by the paper's indices; the warm-up is 2 (p - w - 1) + (v - 1) p."""
    m = p * rounds
    schedule = interleaved(p * v, m, workers=p).take(batches)
    for worker, tasks in enumerate(schedule.workers):
        for batch in range(batches):
            part = tasks[batch * (2 * m + 1) * v : (batch + 1) * (2 * m + 1) * v]
            warm_up = min(2 * (p - worker - 1) + (v - 1) * p, m * v)
            ahead = [0, *accumulated(part[: 2 * m * v])]
            assert ahead[warm_up] == warm_up
            assert max(ahead) == min(warm_up + 1, m * v)
            for op in Op.FORWARD, Op.BACKWARD:
                for i, task in enumerate(t for t in part if t.op is op):
                    chunk = i % (p * v) // p
                    chunk = chunk if op is Op.FORWARD else v - 1 - chunk
                    k = batch * m + i // (p * v) * p + i % p
                    assert task == Task(op, chunk * p + worker, k, batch)


def accumulated(tasks: Sequence[Task]) -> list[int]:
    """Forwards less backwards after each task."""
    ahead, counts = 0, []
    for task in tasks:
        ahead += 1 if task.op is Op.FORWARD else -1
        counts.append(ahead)
    return counts


@given(workers, chunks, microbatches, small)
def test_any_number_of_microbatches_can_be_executed(p: int, v: int, m: int, batches: int) -> None:
    schedule = interleaved(p * v, m, workers=p).take(batches)
    assert executable(schedule)
    check(schedule, joint_updates=True)
    assert schedule.stage_workers == tuple((stage % p,) for stage in range(p * v))
    assert schedule.updates == flush(p * v, m).take(batches).updates


@given(workers, chunks, microbatches, st.integers(1, 3), st.integers(1, 4))
def test_the_bubble_is_a_vth_of_flushs(p: int, v: int, more: int, f: int, b: int) -> None:
    m = p + more - 1
    durations = {Op.FORWARD: f, Op.BACKWARD: b, Op.UPDATE: 0}
    whole = {Op.FORWARD: v * f, Op.BACKWARD: v * b, Op.UPDATE: 0}
    work = m * v * (f + b)
    bubble = makespan(interleaved(p * v, m, workers=p).take(1), durations) - work
    assert bubble == (p - 1) * (f + b)
    assert makespan(flush(p, m).take(1), whole) - work == v * bubble


@given(workers, chunks, microbatches)
def test_never_longer_than_flush(p: int, v: int, m: int) -> None:
    durations = {Op.FORWARD: 1.0, Op.BACKWARD: 2.0, Op.UPDATE: 0.0}
    whole = {op: v * slots for op, slots in durations.items()}
    assert makespan(interleaved(p * v, m, workers=p).take(1), durations) <= makespan(
        flush(p, m).take(1), whole
    )


def makespan(schedule: Schedule, durations: Mapping[Op, float]) -> float:
    return max(float(worker[:, 1].max()) for worker in slots(schedule, durations))


@given(workers, chunks, microbatches, small, st.integers(2, 3))
def test_replicated_its_updates_wait_for_their_stages_next_forward(
    p: int, v: int, m: int, batches: int, width: int
) -> None:
    schedule = replicate(interleaved(p * v, m, workers=p).take(batches), width)
    check(schedule, joint_updates=True)
    for tasks in schedule.workers:
        for update, following in pairwise([*tasks, None]):
            if update and update.op is Op.UPDATE and following and following.op is not Op.UPDATE:
                assert following[:2] == (Op.FORWARD, update.stage)


@pytest.mark.parametrize(("stages", "workers"), [(5, 2), (2, 4), (3, 3), (1, 1)])
def test_workers_share_the_stages_equally(stages: int, workers: int) -> None:
    with pytest.raises(ScheduleError, match=f"use a multiple of {workers} from {2 * workers}"):
        interleaved(stages, 4, workers=workers).take(1)


@pytest.mark.parametrize("argument", ["stages", "microbatches", "batches", "workers"])
def test_counts_are_positive(argument: str) -> None:
    arguments = {"stages": 4, "microbatches": 4, "workers": 2, "batches": 1} | {argument: 0}
    batches = arguments.pop("batches")
    with pytest.raises(ScheduleError, match=f"{argument} must be a whole number of at least 1"):
        interleaved(**arguments).take(batches)
