"""Parallel pipelines (PipeDream-2BW, Figure 4), and data parallelism as their one-stage case."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipekit.schedules import Schedule, ScheduleError, check, flush, parse, replicate, two_bw
from tests.schedules.strategies import training_methods


def test_figure_4_is_two_pipelines_of_depth_three() -> None:
    assert replicate(two_bw(3, 3).take(1), 2) == parse(
        """
        worker 0         | F0 F2 F4 .  .  .  .  B0 -  .  B2 -  .  B4 -^5
        worker 1 stage 0 | F1 F3 F5 .  .  .  .  B1 -  .  B3 -  .  B5 -^
        worker 2 stage 1 | .  F0 F2 .  .  B0 -  F4 B2 -  .  B4 -^5
        worker 3 stage 1 | .  F1 F3 .  .  B1 -  F5 B3 -  .  B5 -^
        worker 4 stage 2 | .  .  F0 B0 -  F2 B2 -  F4 B4 -^5
        worker 5 stage 2 | .  .  F1 B1 -  F3 B3 -  F5 B5 -^
        """
    )


def test_an_update_comes_as_late_as_its_readers_allow() -> None:
    """The next batch hides the sum over the pipelines: version 1 is first read by 8 and 9."""
    assert replicate(two_bw(2, 2).take(3), 2) == parse(
        """
        worker 0         | F0 F2 .  B0 -  F4 B2 -  F6 B4 -^3 F8 B6 -  F10 B8 -  .  B10 -^7^11
        worker 1 stage 0 | F1 F3 .  B1 -  F5 B3 -  F7 B5 -^3 F9 B7 -  F11 B9 -  .  B11 -^7^
        worker 2 stage 1 | .  F0 B0 -  F2 B2 -  F4 B4 -  F6 B6 -^3 F8 B8 -  F10 B10 -^7^11
        worker 3 stage 1 | .  F1 B1 -  F3 B3 -  F5 B5 -  F7 B7 -^3 F9 B9 -  F11 B11 -^7^
        """
    )


@given(training_methods)
def test_one_pipeline_has_no_sums_to_hide(schedule: Schedule) -> None:
    assert replicate(schedule, 1) == schedule


def test_one_stage_replicated_is_data_parallelism() -> None:
    assert replicate(flush(1, 1).take(2), 2) == parse(
        """
        worker 0         | F0 B0 -^1 F2 B2 -^3
        worker 1 stage 0 | F1 B1 -^  F3 B3 -^
        """
    )


@given(training_methods, st.integers(1, 4))
def test_every_pipeline_keeps_no_more_than_the_one_kept(schedule: Schedule, width: int) -> None:
    alone, together = check(schedule), check(replicate(schedule, width))
    most = [v for v in alone.peak_versions for _ in range(width)]
    assert all(kept <= v for kept, v in zip(together.peak_versions, most, strict=True))
    assert together.peak_in_flight == tuple(v for v in alone.peak_in_flight for _ in range(width))


@given(training_methods, st.integers(1, 4))
def test_batches_grow_with_the_width(schedule: Schedule, width: int) -> None:
    batches = replicate(schedule, width).batches
    assert [len(b) for b in batches] == [len(b) * width for b in schedule.batches]


def test_no_pipelines_are_refused() -> None:
    with pytest.raises(ScheduleError, match="width must be a whole number of at least 1, not 0"):
        replicate(flush(2, 2), 0)
