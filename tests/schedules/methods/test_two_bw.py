"""PipeDream-2BW against its section 3.1 and Figure 2.

The paper counts workers, inputs and slots from 1, and labels a version by the last input in it:
its W(4) with m = 4 is version 1 here.
"""

from inspect import cleandoc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipekit.schedules import Op, Schedule, ScheduleError, Task, check, slots, two_bw
from tests.schedules.reference import versions_alive
from tests.schedules.strategies import small, stages
from tests.schedules.timing import makespan

FIGURE_2 = two_bw(stages=4, microbatches=4).take(3)


def passes(schedule: Schedule, op: Op) -> list[Task]:
    return [task for tasks in schedule.workers for task in tasks if task.op is op]


def test_figure_2() -> None:
    """``^`` ends the backwards of inputs 4, 8 and 12 (3, 7 and 11 from 0) with a new version."""
    assert str(FIGURE_2) == cleandoc("""
        # PipeDream-2BW
        time     | 1     2     3     4     5     6     7     8     9     10    11    12    13    14    15    16    17    18    19    20    21    22    23    24    25    26    27    28    29    30    31    32    33    34    35    36    37    38    39    40    41    42    43    44    45
        worker 0 | F0    F1    F2    F3    .     .     .     .     .     .     B0    -     F4    B1    -     F5    B2    -     F6    B3    -^    F7:0  B4    -     F8    B5    -     F9    B6    -     F10   B7    -^    F11:1 B8    -     .     B9    -     .     B10   -     .     B11   -^
        worker 1 | .     F0    F1    F2    .     .     .     .     B0    -     F3    B1    -     F4    B2    -     F5    B3    -^    F6:0  B4    -     F7:0  B5    -     F8    B6    -     F9    B7    -^    F10:1 B8    -     F11:1 B9    -     .     B10   -     .     B11   -^
        worker 2 | .     .     F0    F1    .     .     B0    -     F2    B1    -     F3    B2    -     F4    B3    -^    F5:0  B4    -     F6:0  B5    -     F7:0  B6    -     F8    B7    -^    F9:1  B8    -     F10:1 B9    -     F11:1 B10   -     .     B11   -^
        worker 3 | .     .     .     F0    B0    -     F1    B1    -     F2    B2    -     F3    B3    -^    F4:0  B4    -     F5:0  B5    -     F6:0  B6    -     F7:0  B7    -^    F8:1  B8    -     F9:1  B9    -     F10:1 B10   -     F11:1 B11   -^
        """)


@given(stages, st.integers(0, 8), small)
def test_version_formula_for_every_microbatch(d: int, more: int, batches: int) -> None:
    m = d + more
    schedule = two_bw(d, m).take(batches)
    for task in passes(schedule, Op.FORWARD) + passes(schedule, Op.BACKWARD):
        k = task.microbatch + 1
        assert task.version == max((k - 1) // m - 1, 0)


@given(stages, st.integers(0, 8), small)
def test_update_t_sums_batch_t(d: int, more: int, batches: int) -> None:
    m = d + more
    for update in passes(two_bw(d, m).take(batches), Op.UPDATE):
        assert update.microbatch == update.version * m - 1


@given(stages, st.integers(0, 8), st.integers(2, 5))
def test_at_most_two_versions_are_alive(d: int, more: int, batches: int) -> None:
    """Two as soon as there are two batches, on every worker."""
    schedule = two_bw(d, d + more).take(batches)
    assert check(schedule).peak_versions == (2,) * d
    for tasks in schedule.workers:
        assert max(map(len, versions_alive(tasks))) == 2


@given(stages, st.integers(0, 8), small)
def test_one_d_minus_s_inputs_in_flight(d: int, more: int, batches: int) -> None:
    assert check(two_bw(d, d + more).take(batches)).peak_in_flight == tuple(range(d, 0, -1))


@given(stages, st.integers(0, 8), small)
def test_there_is_no_flush(d: int, more: int, batches: int) -> None:
    """The pipeline fills and drains once: (m * batches + d - 1) forwards and backwards in all."""
    m = d + more
    schedule = two_bw(d, m).take(batches)
    assert makespan(schedule) == (m * batches + d - 1) * (1 + 2)
    output = slots(schedule)[-1]
    assert (output[1:, 0] == output[:-1, 1]).all()  # the output stage never idles in between


def test_a_batch_smaller_than_the_depth_is_refused_with_the_remedy() -> None:
    with pytest.raises(ScheduleError, match=r"use microbatches >= 4 \(not 3\) or at most 3 stages"):
        two_bw(4, 3).take(2)


@given(stages, st.integers(0, 3), st.integers(1, 6), st.sets(st.integers(0, 6)))
def test_a_flush_after_a_batch_makes_the_next_one_synchronous(
    d: int, more: int, batches: int, flush_after: set[int]
) -> None:
    schedule = two_bw(d, d + more, flush_after).take(batches)
    check(schedule)
    read = {t.microbatch // (d + more): t.version for t in passes(schedule, Op.FORWARD)}
    assert read == {t: t if t - 1 in flush_after else max(t - 1, 0) for t in range(batches)}


@given(stages, st.integers(0, 8), small, st.data())
def test_more_in_flight_reads_the_same_versions(
    d: int, more: int, batches: int, data: st.DataObject
) -> None:
    m = d + more
    first = data.draw(st.integers(d, m))
    depths = [max(d - stage, first - stage) for stage in range(d)]
    schedule = two_bw(d, m, in_flight=depths).take(batches)
    report = check(schedule)
    assert report.peak_in_flight == tuple(min(depth, m * batches) for depth in depths)
    assert max(report.peak_versions) <= 2
    assert {*passes(schedule, Op.FORWARD)} == {*passes(two_bw(d, m).take(batches), Op.FORWARD)}


def test_no_more_than_a_batch_is_in_flight() -> None:
    with pytest.raises(ScheduleError, match=r"use microbatches >= 7 \(not 6\) or in_flight"):
        two_bw(4, 6, in_flight=[7, 5, 3, 1])
    with pytest.raises(ScheduleError, match="must name a count for each of 4 stages"):
        two_bw(4, 6, in_flight=[4, 3, 2])
