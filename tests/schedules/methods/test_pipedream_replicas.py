"""PipeDream's replicated stages: 1F1B-RR (section 3.3), NOAM (section 3.2), Table 1's configurations.

What every replica does is judged from its table alone: the task lists, not the functions that made
them.
"""

import math
from collections.abc import Sequence
from inspect import cleandoc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipekit import schedules
from pipekit.schedules import Op, Schedule, ScheduleError, Task, check, draw, parse, read_csv
from tests.schedules.reference import in_flight

vectors = st.lists(st.integers(1, 5), min_size=1, max_size=4)
counts = st.integers(1, 24)
variants = st.sampled_from([{}, {"vertical_sync": True}, {"stashing": False}])


def replicas_of(schedule: Schedule, replicas: list[int]) -> list[list[Sequence[Task]]]:
    """Return each stage's task lists, one a replica."""
    lists = iter(schedule.workers)
    return [[next(lists) for _ in range(width)] for width in replicas]


def seen(replicas: list[int], minibatches: int, stage: int, version: int) -> int:
    """Return how many minibatches a version of a stage has seen: a round an update."""
    return min(version * replicas[stage], minibatches)


def test_two_workers_share_the_first_of_three_stages() -> None:
    assert str(schedules.pipedream([2, 1, 1]).take(6)) == cleandoc("""
        # PipeDream 2-1-1; batches of 1
        time             | 1   2   3   4   5   6   7   8   9   10  11  12  13  14  15  16  17  18  19  20  21  22  23  24
        worker 0         | F0  F2  .   .   .   .   .   B0  -^1 .   .   .   F4  B2  -^3 .   .   .   .   B4  -^5
        worker 1 stage 0 | F1  F3  .   .   .   .   .   .   .   .   B1  -^  F5  .   .   .   B3  -^  .   .   .   .   B5  -^
        worker 2 stage 1 | .   F0  F1  .   .   B0  -^  F2  B1  -^  F3  B2  -^  F4  B3  -^  F5  B4  -^  .   B5  -^
        worker 3 stage 2 | .   .   F0  B0  -^  F1  B1  -^  F2  B2  -^  F3  B3  -^  F4  B4  -^  F5  B5  -^
        """)


def test_a_replica_without_minibatches_has_no_tasks() -> None:
    schedule = schedules.pipedream([3, 1]).take(2)
    assert [bool(tasks) for tasks in schedule.workers] == [True, True, False, True]
    assert schedule.stage_workers == ((0, 1), (3,))
    assert parse(str(schedule)) == schedule


@given(counts)
def test_one_stage_replicated_is_replicated_flush(rounds: int) -> None:
    """But for what a batch is: here each worker's minibatch is one."""
    one, other = (
        schedules.pipedream([3]).take(3 * rounds),
        schedules.replicate(schedules.flush(1, 1).take(rounds), 3),
    )
    assert one.workers == other.workers
    assert (len(one.batches), len(other.batches)) == (3 * rounds, rounds)


# --- How many in flight, section 3.2 -------------------------------------------------------------


@given(vectors, counts)
def test_no_replica_has_more_in_flight_than_the_workers_from_it_on_need(
    replicas: list[int], minibatches: int
) -> None:
    for stage, lists in enumerate(
        replicas_of(schedules.pipedream(replicas).take(minibatches), replicas)
    ):
        most = math.ceil(sum(replicas[stage:]) / replicas[stage])
        for tasks in lists:
            passes = [task for task in tasks if task.op is not Op.UPDATE]
            own = sum(task.op is Op.FORWARD for task in passes)
            assert max(in_flight(passes), default=0) == min(most, own)


# --- Round robin, section 3.3 --------------------------------------------------------------------


@given(vectors, counts, variants)
def test_round_robin_and_home_again(
    replicas: list[int], minibatches: int, variant: dict[str, Any]
) -> None:
    schedule = schedules.pipedream(replicas, **variant).take(minibatches)
    assert len(schedule.workers) == sum(replicas)
    assert schedule.stages == len(replicas)
    for stage, lists in enumerate(replicas_of(schedule, replicas)):
        for j, tasks in enumerate(lists):
            assert {task.stage for task in tasks} <= {stage}
            mine = [k for k in range(minibatches) if k % replicas[stage] == j]
            for op in (Op.FORWARD, Op.BACKWARD):
                assert [task.microbatch for task in tasks if task.op is op] == mine


@given(vectors, counts)
def test_after_start_up_forwards_and_backwards_alternate(
    replicas: list[int], minibatches: int
) -> None:
    """From a worker's first backward to its last forward."""
    for tasks in schedules.pipedream(replicas).take(minibatches).workers:
        order = "".join(task.op.letter for task in tasks if task.op is not Op.UPDATE)
        turns = order[order.find("B") : order.rfind("F") + 1]
        assert "FF" not in turns
        assert "BB" not in turns


@given(vectors, counts)
def test_each_update_sums_a_round(replicas: list[int], minibatches: int) -> None:
    """Consecutive minibatches, one a replica; the last update what is left of a round."""
    schedule = schedules.pipedream(replicas).take(minibatches)
    assert schedule.batches == tuple(range(k, k + 1) for k in range(minibatches))
    for stage, width in enumerate(replicas):
        starts = range(0, minibatches, width)
        assert schedule.updates[stage] == tuple(
            range(k, min(k + width, minibatches)) for k in starts
        )
        for tasks in replicas_of(schedule, replicas)[stage]:
            made = [task.version for task in tasks if task.op is Op.UPDATE]
            assert made == (list(range(1, len(starts) + 1)) if tasks else [])


@given(vectors, counts, variants)
def test_it_passes_the_check_and_reads_back(
    replicas: list[int], minibatches: int, variant: dict[str, Any]
) -> None:
    schedule = schedules.pipedream(replicas, **variant).take(minibatches)
    check(schedule)
    for again in (parse(draw(schedule)), read_csv(schedule.to_csv())):
        assert again == schedule
        assert (again.name, again.batch_size) == (schedule.name, schedule.batch_size)


# --- Section 3.4: which weights a minibatch sees -------------------------------------------------


@given(vectors, counts)
def test_with_stashing_both_passes_read_what_was_newest_at_the_forward(
    replicas: list[int], minibatches: int
) -> None:
    for tasks in schedules.pipedream(replicas).take(minibatches).workers:
        updates, read = 0, {}
        for op, _, k, version in tasks:
            if op is Op.UPDATE:
                updates += 1
            elif op is Op.FORWARD:
                assert version == updates
                read[k] = version
            else:
                assert version == read[k]


@given(vectors, counts)
def test_without_stashing_passes_read_the_newest(replicas: list[int], minibatches: int) -> None:
    schedule = schedules.pipedream(replicas, stashing=False).take(minibatches)
    assert not schedule.stashing
    for tasks in schedule.workers:
        updates = 0
        for op, _, _, version in tasks:
            updates += op is Op.UPDATE
            assert version == updates


@given(vectors, counts)
def test_vertical_sync_reads_what_has_seen_no_more_than_the_input_stage(
    replicas: list[int], minibatches: int
) -> None:
    """And no less than it must: the next version has seen a minibatch that the input's has not."""
    schedule = schedules.pipedream(replicas, vertical_sync=True).take(minibatches)
    forwards = {
        t[1:3]: t.version for tasks in schedule.workers for t in tasks if t.op is Op.FORWARD
    }
    for (stage, k), version in forwards.items():
        limit = seen(replicas, minibatches, 0, forwards[0, k])
        assert seen(replicas, minibatches, stage, version) <= limit
        assert (version + 1) * replicas[stage] > limit


@pytest.mark.parametrize("replicas", [[], [0], [2, 0, 1], [-1, 2]])
def test_no_stage_and_no_replica_are_refused(replicas: list[int]) -> None:
    with pytest.raises(ScheduleError, match="must be a whole number of at least 1"):
        schedules.pipedream(replicas).take(4)
