"""PACI: how far apart a microbatch's two passes are, and that nothing is kept for it."""

import math

from hypothesis import given
from hypothesis import strategies as st

from pipekit.schedules import Op, check, paci, parse, pipedream


def test_two_stages_that_update_every_other_backward() -> None:
    drawn = parse(str(paci(2, 2).take(2)))
    assert [[task.version for task in tasks] for tasks in paci(2, 2).take(2).workers] == [
        # F0 F1 B0 F2 B1 U F3 B2 B3 U
        [0, 0, 0, 0, 0, 1, 1, 1, 1, 2],
        # F0 B0 F1 B1 U F2 B2 F3 B3 U
        [0, 0, 0, 0, 1, 1, 1, 1, 1, 2],
    ]
    assert drawn.stashing is False


@given(st.integers(1, 6), st.integers(1, 6), st.integers(1, 6))
def test_passes_are_no_further_apart_than_the_papers_bound(n: int, m: int, batches: int) -> None:
    schedule = paci(n, m).take(batches)
    report = check(schedule)
    assert report.peak_in_flight == tuple(min(n - s, m * batches) for s in range(n))
    forward = {
        (t.stage, t.microbatch): t.version
        for w in schedule.workers
        for t in w
        if t.op is Op.FORWARD
    }
    apart = [
        t.version - forward[t.stage, t.microbatch]
        for w in schedule.workers
        for t in w
        if t.op is Op.BACKWARD
    ]
    assert min(apart) >= 0
    assert max(apart) <= math.ceil((n - 1) / m)


@given(st.integers(1, 5), st.integers(1, 8))
def test_with_one_microbatch_it_is_pipedream_without_stashing(n: int, batches: int) -> None:
    assert paci(n, 1).take(batches).workers == pipedream(n, stashing=False).take(batches).workers
