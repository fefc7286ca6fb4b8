"""PipeDream by its figures and formulas, and PACI."""

import math
from inspect import cleandoc
from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipekit.schedules import (
    Op,
    Schedule,
    ScheduleError,
    asp,
    check,
    draw,
    paci,
    parse,
    pipedream,
    slots,
)
from tests.schedules.strategies import stages

EQUAL_SLOTS = {Op.FORWARD: 1, Op.BACKWARD: 1}


def versions_seen(schedule: Schedule, op: Op, k: int) -> list[int]:
    """Return the version that each machine's pass of minibatch ``k`` reads."""
    return [
        task.version
        for tasks in schedule.workers
        for task in tasks
        if task.op is op and task.microbatch == k
    ]


def test_figure_8() -> None:
    assert draw(pipedream(4).take(8), EQUAL_SLOTS) == cleandoc("""
        # PipeDream
        time     | 1   2   3   4   5   6   7   8   9   10  11  12  13  14  15  16  17  18  19  20  21  22
        worker 0 | F0  F1  F2  F3  .   .   .   B0^ F4  B1^ F5  B2^ F6  B3^ F7  B4^ .   B5^ .   B6^ .   B7^
        worker 1 | .   F0  F1  F2  .   .   B0^ F3  B1^ F4  B2^ F5  B3^ F6  B4^ F7  B5^ .   B6^ .   B7^
        worker 2 | .   .   F0  F1  .   B0^ F2  B1^ F3  B2^ F4  B3^ F5  B4^ F6  B5^ F7  B6^ .   B7^
        worker 3 | .   .   .   F0  B0^ F1  B1^ F2  B2^ F3  B3^ F4  B4^ F5  B5^ F6  B6^ F7  B7^
        """)


def test_figure_1b_of_2bw_where_a_backward_takes_two_slots() -> None:
    assert str(pipedream(4).take(6)) == cleandoc("""
        # PipeDream
        time     | 1  2  3  4  5  6  7  8  9  10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27
        worker 0 | F0 F1 F2 F3 .  .  .  .  .  .  B0 -^ F4 B1 -^ F5 B2 -^ .  B3 -^ .  B4 -^ .  B5 -^
        worker 1 | .  F0 F1 F2 .  .  .  .  B0 -^ F3 B1 -^ F4 B2 -^ F5 B3 -^ .  B4 -^ .  B5 -^
        worker 2 | .  .  F0 F1 .  .  B0 -^ F2 B1 -^ F3 B2 -^ F4 B3 -^ F5 B4 -^ .  B5 -^
        worker 3 | .  .  .  F0 B0 -^ F1 B1 -^ F2 B2 -^ F3 B3 -^ F4 B4 -^ F5 B5 -^
        """)


@given(stages, st.integers(1, 20), st.integers(1, 3), st.integers(1, 4))
def test_no_worker_idles_in_steady_state(d: int, more: int, forward: int, backward: int) -> None:
    """From a worker's first backward to the one that follows its last forward."""
    schedule = pipedream(d).take(d + more)
    times = slots(schedule, {Op.FORWARD: forward, Op.BACKWARD: backward, Op.UPDATE: 0})
    for tasks, spans in zip(schedule.workers, times, strict=True):
        first = next(i for i, task in enumerate(tasks) if task.op is Op.BACKWARD)
        last = max(i for i, task in enumerate(tasks) if task.op is Op.FORWARD) + 1
        assert (spans[first + 1 : last + 1, 0] == spans[first:last, 1]).all()


# --- Section 3.4: which weights a minibatch sees -------------------------------------------------


@given(stages, st.integers(1, 20))
def test_stage_s_of_n_reads_w_t_minus_n_plus_s(n: int, minibatches: int) -> None:
    """Minibatch t + 1, stages from 1: w(t+1) = w(t) - nu * grad f(w1(t-n+1), ..., wn(t))."""
    stashing = pipedream(n).take(minibatches)
    synced = pipedream(n, vertical_sync=True).take(minibatches)
    for t in range(minibatches):
        expected = [max(t - n + s, 0) for s in range(1, n + 1)]
        assert versions_seen(stashing, Op.FORWARD, t) == expected
        assert versions_seen(stashing, Op.BACKWARD, t) == expected
        assert versions_seen(synced, Op.FORWARD, t) == [max(t - n + 1, 0)] * n
        assert versions_seen(synced, Op.BACKWARD, t) == [max(t - n + 1, 0)] * n


@given(stages, st.integers(1, 20))
def test_the_three_variants_differ_in_versions_only(d: int, minibatches: int) -> None:
    variants = pipedream(d), pipedream(d, stashing=False), pipedream(d, vertical_sync=True)
    orders = {
        tuple(tuple(task[:3] for task in tasks) for tasks in variant.take(minibatches).workers)
        for variant in variants
    }
    assert len(orders) == 1


@pytest.mark.parametrize(
    ("schedule", "versions"),
    [
        (pipedream(4).take(8), (4, 3, 2, 1)),  # one a minibatch in flight
        # footnote 4: n at the output stage
        (pipedream(4, vertical_sync=True).take(8), (4, 4, 4, 4)),
        (pipedream(4, stashing=False).take(8), (1, 1, 1, 1)),
    ],
)
def test_versions_kept(schedule: Schedule, versions: tuple[int, ...]) -> None:
    assert check(schedule).peak_versions == versions


def test_vertical_sync_without_stashing_is_refused() -> None:
    with pytest.raises(ScheduleError, match="vertical sync needs weight stashing"):
        pipedream(2, stashing=False, vertical_sync=True).take(3)


@given(st.integers(1, 6), st.integers(1, 6), st.integers(1, 6))
def test_passes_are_no_further_apart_than_the_papers_bound(n: int, m: int, batches: int) -> None:
    schedule = paci(n, m).take(batches)
    report = check(schedule)
    assert report.peak_in_flight == tuple(min(n - s, m * batches) for s in range(n))
    tasks = [*chain(*schedule.workers)]
    forward = {t[1:3]: t.version for t in tasks if t.op is Op.FORWARD}
    apart = [t.version - forward[t[1:3]] for t in tasks if t.op is Op.BACKWARD]
    assert min(apart) >= 0
    assert max(apart) <= math.ceil((n - 1) / m)


@given(st.integers(1, 5), st.integers(1, 8))
def test_with_one_microbatch_it_is_pipedream_without_stashing(n: int, batches: int) -> None:
    assert paci(n, 1).take(batches).workers == pipedream(n, stashing=False).take(batches).workers


workers = st.integers(1, 5)
counts = st.integers(1, 24)
later = st.integers(0, 8)  # updates beyond the shortest delay


def test_three_workers_that_never_wait() -> None:
    assert str(asp(3).take(9)) == cleandoc("""
        # ASP; batches of 1
        time             | 1          2          3          4          5          6          7          8          9
        worker 0         | F0         B0         -^         F3         B3         -^1^2^     F6         B6         -^4^5^^7^8
        worker 1 stage 0 | F1         B1         -^0^       F4         B4         -^2^3^     F7         B7         -^5^6^^8
        worker 2 stage 0 | F2         B2         -^0^1^     F5         B5         -^3^4^     F8         B8         -^6^7^
        """)


def test_a_longer_delay_leaves_gradients_time_to_travel() -> None:
    """F4 and F5 see no gradient of the round before theirs: those are still under way."""
    assert asp(2, delay=3).take(6) == parse("""
        # ASP; batches of 1
        worker 0         | F0 B0 - F2 B2 -^0   F4 B4 -^1^2^3^^5
        worker 1 stage 0 | F1 B1 - F3 B3 -^0^1 F5 B5 -^2^3^4^
        """)


@given(workers, counts, later)
def test_minibatch_k_reads_what_k_minus_the_delay_updates_made(
    n: int, minibatches: int, more: int
) -> None:
    schedule = asp(n, delay=n - 1 + more).take(minibatches)
    for worker, tasks in enumerate(schedule.workers):
        passes = [task for task in tasks if task.op is not Op.UPDATE]
        assert [(t.op, t.microbatch, t.version) for t in passes] == [
            (op, k, max(0, k - (n - 1 + more)))
            for k in range(worker, minibatches, n)
            for op in (Op.FORWARD, Op.BACKWARD)
        ]


@given(workers, counts, later)
def test_every_worker_makes_every_update_once_in_order(n: int, minibatches: int, more: int) -> None:
    schedule = asp(n, delay=n - 1 + more).take(minibatches)
    assert schedule.updates == (tuple(range(k, k + 1) for k in range(minibatches)),)
    for tasks in schedule.workers[:minibatches]:
        made = [(task.microbatch, task.version) for task in tasks if task.op is Op.UPDATE]
        assert made == [(k, k + 1) for k in range(minibatches)]
    assert all(tasks == () for tasks in schedule.workers[minibatches:])


@pytest.mark.parametrize("delay", [-1, 0, 2])
def test_a_delay_in_which_they_would_wait_is_refused(delay: int) -> None:
    with pytest.raises(ScheduleError, match="delay must be at least 3 for 4 workers"):
        asp(4, delay).take(8)
