"""PipeDream-Flush against PipeDream-2BW's section 3.2 and Figure 3."""

from inspect import cleandoc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipekit.schedules import Op, ScheduleError, check, flush, gpipe, slots
from tests.schedules.strategies import microbatches, small, stages


def test_figure_3_on_two_stages() -> None:
    assert str(flush(2, 4).take(2)) == cleandoc("""
        # PipeDream-Flush
        time     | 1  2  3  4  5  6  7  8  9  10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30
        worker 0 | F0 F1 .  .  B0 -  F2 B1 -  F3 B2 -  .  B3 -^ F4 F5 .  .  B4 -  F6 B5 -  F7 B6 -  .  B7 -^
        worker 1 | .  F0 B0 -  F1 B1 -  F2 B2 -  F3 B3 -^ .  .  .  F4 B4 -  F5 B5 -  F6 B6 -  F7 B7 -^
        """)


def test_four_stages() -> None:
    assert str(flush(4, 4).take(1)) == cleandoc("""
        # PipeDream-Flush
        time     | 1  2  3  4  5  6  7  8  9  10 11 12 13 14 15 16 17 18 19 20 21
        worker 0 | F0 F1 F2 F3 .  .  .  .  .  .  B0 -  .  B1 -  .  B2 -  .  B3 -^
        worker 1 | .  F0 F1 F2 .  .  .  .  B0 -  F3 B1 -  .  B2 -  .  B3 -^
        worker 2 | .  .  F0 F1 .  .  B0 -  F2 B1 -  F3 B2 -  .  B3 -^
        worker 3 | .  .  .  F0 B0 -  F1 B1 -  F2 B2 -  F3 B3 -^
        """)


def test_fewer_microbatches_than_stages() -> None:
    assert str(flush(3, 2).take(1)) == cleandoc("""
        # PipeDream-Flush
        time     | 1  2  3  4  5  6  7  8  9  10 11 12
        worker 0 | F0 F1 .  .  .  .  .  B0 -  .  B1 -^
        worker 1 | .  F0 F1 .  .  B0 -  .  B1 -^
        worker 2 | .  .  F0 B0 -  F1 B1 -^
        """)


def test_every_microbatch_of_a_batch_reads_the_version_of_that_batch() -> None:
    for tasks in flush(3, 4).take(3).workers:
        for op, _, k, version in tasks:
            assert version == k // 4 + (1 if op is Op.UPDATE else 0)


@pytest.mark.parametrize(("d", "m"), [(2, 4), (4, 4), (4, 8), (8, 8), (8, 32)])
def test_makespan_is_gpipes(d: int, m: int) -> None:
    for schedule in flush(d, m).take(1), gpipe(d, m).take(1):
        assert max(worker[:, 1].max() for worker in slots(schedule)) == (m + d - 1) * (1 + 2)


@given(stages, microbatches, small, st.integers(1, 3), st.integers(1, 4))
def test_each_batch_takes_m_plus_d_minus_1_forwards_and_backwards(
    d: int, m: int, batches: int, forward: int, backward: int
) -> None:
    durations = {Op.FORWARD: forward, Op.BACKWARD: backward, Op.UPDATE: 0}
    for method in flush, gpipe:
        times = slots(method(d, m).take(batches), durations)
        makespan = max(worker[:, 1].max() for worker in times)
        assert makespan == batches * (m + d - 1) * (forward + backward)


@given(stages, microbatches, small)
def test_at_most_depth_microbatches_in_flight_where_gpipe_has_m(d: int, m: int, b: int) -> None:
    report = check(flush(d, m).take(b))
    assert report.peak_in_flight == tuple(min(d - stage, m) for stage in range(d))
    assert max(report.peak_in_flight) <= d
    assert check(gpipe(d, m).take(b)).peak_in_flight == (m,) * d


@given(stages, microbatches, small)
def test_one_version_is_alive(d: int, m: int, b: int) -> None:
    assert check(flush(d, m).take(b)).peak_versions == (1,) * d


@pytest.mark.parametrize(("d", "m", "batches"), [(0, 1, 1), (1, 0, 1), (1, 1, 0)])
def test_counts_below_1_are_refused(d: int, m: int, batches: int) -> None:
    with pytest.raises(ScheduleError, match="must be a whole number of at least 1"):
        flush(d, m).take(batches)
