"""Asynchronous data parallelism (PipeDream, sections 2.1 and 5.2), judged from its table."""

from inspect import cleandoc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipekit.schedules import Op, ScheduleError, asp, parse

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
def test_every_worker_makes_every_update_once_and_in_order(
    n: int, minibatches: int, more: int
) -> None:
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
