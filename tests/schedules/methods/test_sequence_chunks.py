"""Seq1F1B and TeraPipe: chunks of sequences in place of microbatches."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from pipekit import schedules
from pipekit.schedules import Op, Schedule, check, parse
from tests.schedules.reference import executable, key, refusal
from tests.schedules.strategies import slipped, swap
from tests.schedules.timing import makespan, peaks

p, m, q = st.integers(1, 5), st.integers(1, 5), st.integers(1, 4)


def test_two_stages_and_two_chunks() -> None:
    assert schedules.seq1f1b(2, 2, chunks=2).take(1) == parse("""
        # Seq1F1B; 2 chunks a microbatch
        worker 0 | F0.0 F0.1 F1.0 .    B0.1 -    F1.1 B0.0 -    .    B1.1 -    B1.0 -^
        worker 1 | .    F0.0 F0.1 B0.1 -    F1.0 B0.0 -    F1.1 B1.1 -    B1.0 -^
        """)
    assert schedules.terapipe(2, 1, chunks=2).take(1) == parse("""
        # TeraPipe; 2 chunks a microbatch
        worker 0 | F0.0 F0.1 . . . B0.1 - B0.0 -^
        worker 1 | . F0.0 F0.1 B0.1 - B0.0 -^
        """)


@given(p, m, q)
def test_chunks_go_forward_in_order_and_backward_in_the_reverse_one(p: int, m: int, q: int) -> None:
    """And the last worker has all chunks of a microbatch before its first backward."""
    for schedule in (
        schedules.seq1f1b(p, m, chunks=q).take(1),
        schedules.terapipe(p, m, chunks=q).take(1),
    ):
        check(schedule, joint_updates=True)
        for tasks in schedule.workers:
            forward = [t.microbatch for t in tasks if t.op is Op.FORWARD]
            back = [t.microbatch for t in tasks if t.op is Op.BACKWARD]
            assert forward == list(range(m * q))
            assert back == [k * q + c for k in range(m) for c in reversed(range(q))]
    first = [t.op for t in schedules.seq1f1b(p, m, chunks=q).take(1).workers[-1]]
    assert first.index(Op.BACKWARD) == q


@given(p, m, q)
def test_bubble_and_memory_shrink_with_the_chunks(p: int, m: int, q: int) -> None:
    """(p - 1) / q of a microbatch's time, and (p - 1 + q) / q microbatches in flight, not p."""
    one = schedules.seq1f1b(p, m, chunks=q).take(1)
    assert peaks(one) == tuple(min(p - 1 - w + q, m * q) for w in range(p))
    if m >= p:
        assert makespan(one) == 3 * (m * q + p - 1)
    assert schedules.seq1f1b(p, m, chunks=1) == schedules.flush(p, m)
    assert schedules.terapipe(p, m, chunks=1) == schedules.gpipe(p, m)


def causal(schedule: Schedule) -> bool:
    """Whether each chunk is forward behind the ones before it, and backward before them."""
    for tasks in schedule.workers:
        at = {key(task): n for n, task in enumerate(tasks)}
        for (op, stage, k), n in at.items():
            before = at.get((op, stage, k - 1)) if k % schedule.chunks else None
            if before is not None and (before < n) != (op is Op.FORWARD):
                return False
    return True


@given(st.data())
def test_what_is_out_of_order_is_refused_exactly_there(data: st.DataObject) -> None:
    damaged = slipped(data, schedules.seq1f1b(2, 2, chunks=2).take(1), swap)
    fine = executable(replace(damaged, chunks=1)) and causal(damaged)
    assert (refusal(lambda: check(damaged)) is None) == fine
