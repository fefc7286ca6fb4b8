"""GPipe as its figures have it, one minibatch at a time, and forwards only."""

from inspect import cleandoc
from typing import Any

import pytest
from hypothesis import given

from pipekit import schedules
from pipekit.schedules import Op, ScheduleError, check, draw, parse, slots
from tests.schedules.strategies import microbatches, small, stages

EQUAL_SLOTS = {Op.FORWARD: 1, Op.BACKWARD: 1}


def test_figure_2c() -> None:
    """Four partitions, four micro-batches; the backwards in the order of the forwards."""
    assert draw(schedules.gpipe(4, 4).take(1), EQUAL_SLOTS) == cleandoc("""
        # GPipe
        time     | 1   2   3   4   5   6   7   8   9   10  11  12  13  14
        worker 0 | F0  F1  F2  F3  .   .   .   .   .   .   B0  B1  B2  B3^
        worker 1 | .   F0  F1  F2  F3  .   .   .   .   B0  B1  B2  B3^
        worker 2 | .   .   F0  F1  F2  F3  .   .   B0  B1  B2  B3^
        worker 3 | .   .   .   F0  F1  F2  F3  B0  B1  B2  B3^
        """)


def test_figure_1a_of_2bw_flushes_before_each_update() -> None:
    assert str(schedules.gpipe(4, 4).take(2)) == cleandoc("""
        # GPipe
        time     | 1  2  3  4  5  6  7  8  9  10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31 32 33 34 35 36 37 38 39 40 41 42
        worker 0 | F0 F1 F2 F3 .  .  .  .  .  .  .  .  .  B0 -  B1 -  B2 -  B3 -^ F4 F5 F6 F7 .  .  .  .  .  .  .  .  .  B4 -  B5 -  B6 -  B7 -^
        worker 1 | .  F0 F1 F2 F3 .  .  .  .  .  .  B0 -  B1 -  B2 -  B3 -^ .  .  .  F4 F5 F6 F7 .  .  .  .  .  .  B4 -  B5 -  B6 -  B7 -^
        worker 2 | .  .  F0 F1 F2 F3 .  .  .  B0 -  B1 -  B2 -  B3 -^ .  .  .  .  .  .  F4 F5 F6 F7 .  .  .  B4 -  B5 -  B6 -  B7 -^
        worker 3 | .  .  .  F0 F1 F2 F3 B0 -  B1 -  B2 -  B3 -^ .  .  .  .  .  .  .  .  .  F4 F5 F6 F7 B4 -  B5 -  B6 -  B7 -^
        """)


def test_figure_3_of_2bw_on_two_stages() -> None:
    assert schedules.gpipe(2, 4).take(1) == parse("""
        worker 0 | F0 F1 F2 F3 .  .  .  B0 -  B1 -  B2 -  B3 -^
        worker 1 | .  F0 F1 F2 F3 B0 -  B1 -  B2 -  B3 -^
        """)


@given(stages, microbatches, small)
def test_all_m_microbatches_are_in_flight_and_one_version_is_alive(d: int, m: int, b: int) -> None:
    report = check(schedules.gpipe(d, m).take(b))
    assert report.peak_in_flight == (m,) * d
    assert report.peak_versions == (1,) * d


@pytest.mark.parametrize(
    "build",
    [
        lambda: schedules.gpipe(4, 10**9).take(1),
        lambda: schedules.flush(100, 100).take(10**6),
        lambda: schedules.pipedream(2).take(10**9),
        lambda: schedules.replicate(schedules.gpipe(1, 1), 10**9),
        lambda: schedules.inference(1).take(10**9),
    ],
)
def test_a_table_that_fits_no_memory_is_refused_with_its_size(build: Any) -> None:
    with pytest.raises(ScheduleError, match=r"\d,000,000,000 passes each way, some [\d,]+ GB"):
        build()


@given(stages, microbatches)
def test_one_worker_works_at_a_time(d: int, minibatches: int) -> None:
    """A quarter of four accelerators, as GPipe's Figure 2b shows."""
    passes = sorted(
        tuple(span)
        for worker in slots(schedules.model_parallel(d).take(minibatches))
        for span in worker
    )
    ends = [end for _, end in passes]
    starts = [start for start, _ in passes]
    assert all(end <= start for end, start in zip(ends, starts[1:], strict=False))
    assert ends[-1] == minibatches * d * (1 + 2)


@given(stages, microbatches)
def test_forwards_keep_nothing_and_the_last_leaves_after_m_plus_d_minus_1_slots(
    d: int, m: int
) -> None:
    schedule = schedules.inference(d).take(m)
    assert not schedule.trains
    report = check(schedule)
    assert report.peak_in_flight == (0,) * d
    assert report.peak_versions == (1,) * d
    assert slots(schedule)[-1][-1, 1] == m + d - 1
