"""Forward passes only."""

from inspect import cleandoc

import pytest
from hypothesis import given

from pipekit.schedules import ScheduleError, check, inference, slots
from tests.schedules.strategies import microbatches, stages


def test_microbatches_stream_through() -> None:
    assert str(inference(3).take(4)) == cleandoc("""
        # inference
        time     | 1  2  3  4  5  6
        worker 0 | F0 F1 F2 F3
        worker 1 | .  F0 F1 F2 F3
        worker 2 | .  .  F0 F1 F2 F3
        """)


@given(stages, microbatches)
def test_nothing_is_kept_for_a_backward(d: int, m: int) -> None:
    schedule = inference(d).take(m)
    assert not schedule.trains
    report = check(schedule, capacity=1)
    assert report.peak_in_flight == (0,) * d
    assert report.peak_versions == (1,) * d


@given(stages, microbatches)
def test_the_last_leaves_after_m_plus_d_minus_1_slots(d: int, m: int) -> None:
    assert slots(inference(d).take(m))[-1][-1, 1] == m + d - 1


@pytest.mark.parametrize(("d", "batches"), [(0, 1), (1, 0)])
def test_counts_below_1_are_refused(d: int, batches: int) -> None:
    with pytest.raises(ScheduleError, match="must be a whole number of at least 1"):
        inference(d).take(batches)
