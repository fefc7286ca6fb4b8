"""1F1B: in flight by formula, with a flush, eager, and with backwards in two parts."""

from inspect import cleandoc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipekit import schedules
from pipekit.clusters import flat
from pipekit.profiling import Profile
from pipekit.schedules import ScheduleError, check, parse
from pipekit.simulation import simulate
from tests.schedules.strategies import microbatches, small, stages
from tests.schedules.timing import Costs, every_costs, makespan, peaks, spans


def test_figure_3_on_two_stages() -> None:
    assert str(schedules.flush(2, 4).take(2)) == cleandoc("""
        # PipeDream-Flush
        time     | 1  2  3  4  5  6  7  8  9  10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30
        worker 0 | F0 F1 .  .  B0 -  F2 B1 -  F3 B2 -  .  B3 -^ F4 F5 .  .  B4 -  F6 B5 -  F7 B6 -  .  B7 -^
        worker 1 | .  F0 B0 -  F1 B1 -  F2 B2 -  F3 B3 -^ .  .  .  F4 B4 -  F5 B5 -  F6 B6 -  F7 B7 -^
        """)


@given(stages, microbatches, small, st.integers(1, 3), st.integers(1, 4))
def test_each_batch_takes_m_plus_d_minus_1_forwards_and_backwards(
    d: int, m: int, batches: int, forward: int, backward: int
) -> None:
    for method in schedules.flush, schedules.gpipe:
        whole = makespan(method(d, m).take(batches), Costs(forward, backward, 0))
        assert whole == batches * (m + d - 1) * (forward + backward)


@given(stages, microbatches, small)
def test_at_most_depth_microbatches_in_flight_where_gpipe_has_m(d: int, m: int, b: int) -> None:
    report = check(schedules.flush(d, m).take(b))
    assert report.peak_in_flight == tuple(min(d - stage, m) for stage in range(d))
    assert max(report.peak_in_flight) <= d
    assert check(schedules.gpipe(d, m).take(b)).peak_in_flight == (m,) * d


def test_two_workers() -> None:
    assert schedules.eager(2, 4).take(1) == parse("""
        worker 0 | F0 F1 F2 . . B0 - F3 B1 - . B2 - . B3 -^
        worker 1 | . F0 B0 - F1 B1 - F2 B2 - F3 B3 -^
        """)


def test_three_workers_begin_as_alpas_do() -> None:
    """The table in the docstring of Alpa's OverlapFriendlyPipeDreamSchedule."""
    starts = ["F0 F1 F2 F3 F4 B0 F5", "F0 F1 F2 B0 F3 B1", "F0 B0 F1 B1 F2"]
    for tasks, start in zip(schedules.eager(3, 8).take(1).workers, starts, strict=True):
        assert " ".join(task.label for task in tasks).startswith(start)


@pytest.mark.parametrize("p", range(1, 6))
def test_without_links_it_is_flushs_length_with_more_in_flight(p: int) -> None:
    m = 2 * p
    assert peaks(schedules.eager(p, m).take(1)) == tuple(2 * (p - w) - 1 for w in range(p))
    for costs in every_costs():
        assert makespan(schedules.eager(p, m).take(1), costs) == makespan(
            schedules.flush(p, m).take(1), costs
        )


def test_a_message_that_takes_as_long_as_a_forward_keeps_nobody_waiting() -> None:
    """In the steady state: the fill and the drain have p - 1 messages each."""
    p, m = 4, 16
    profile = Profile.uniform(p, 1.0, 2.0, output_bytes=1.0)
    links = flat(p, 1.0)  # bytes/s
    whole = simulate(schedules.eager(p, m).take(1), profile, cluster=links).makespan_s
    assert whole == pytest.approx(3 * (m + p - 1) + 2 * (p - 1))
    assert simulate(schedules.flush(p, m).take(1), profile, cluster=links).makespan_s > 1.2 * whole


PAPERS = cleandoc("""
    # ZB-H1
    time     | 1   2   3   4   5   6   7   8   9   10  11  12  13  14  15  16  17  18  19  20  21  22  23  24  25  26  27
    worker 0 | F0  F1  F2  F3  .   .   .   I0  W0  F4  I1  W1  F5  I2  W2  F6  I3  W3  F7  I4  W4  I5  W5  I6  W6  I7  W7^
    worker 1 | .   F0  F1  F2  .   .   I0  F3  I1  W0  F4  I2  W1  F5  I3  W2  F6  I4  W3  F7  I5  W4  I6  W5  I7  W6  W7^
    worker 2 | .   .   F0  F1  .   I0  F2  I1  F3  I2  W0  F4  I3  W1  F5  I4  W2  F6  I5  W3  F7  I6  W4  I7  W5  W6  W7^
    worker 3 | .   .   .   F0  I0  F1  I1  F2  I2  F3  I3  W0  F4  I4  W1  F5  I5  W2  F6  I6  W3  F7  I7  W4  W5  W6  W7^
    """)


def test_zb_h1_of_four_workers_and_eight_microbatches() -> None:
    """Figure 3 above has one bubble of p - 1 slots a worker."""
    assert str(schedules.zb_h1(4, 8).take(1)) == PAPERS


def test_zb_h2_of_three_workers() -> None:
    assert schedules.zb_h2(3, 6).take(1) == parse("""
        worker 0 | F0 F1 F2 F3 F4 I0 W0 F5 I1 W1 I2 W2 I3 W3 I4 W4 I5 W5^
        worker 1 | .  F0 F1 F2 I0 F3 I1 F4 I2 W0 F5 I3 W1 I4 W2 I5 W3 W4 W5^
        worker 2 | .  .  F0 I0 F1 I1 F2 I2 F3 I3 F4 I4 W0 F5 I5 W1 W2 W3 W4 W5^
        """)


@pytest.mark.parametrize("p", range(1, 6))
def test_zb_h1s_makespan(p: int) -> None:
    """m (F + I + W) + (p - 1)(F + I - W) if W is the shortest, and only then, for p > 1."""
    for m in (p, p + 1, p + 3):
        schedule = schedules.zb_h1(p, m).take(1)
        assert max(peaks(schedule)) == min(p, m) == peaks(schedules.flush(p, m).take(1))[0]
        for costs in every_costs():
            f, i, w = costs
            formula = m * costs.work + (p - 1) * (f + i - w)
            found = makespan(schedule, costs)
            assert found == formula if w <= min(f, i) or p == 1 else found > formula
            assert found <= makespan(schedules.flush(p, m).take(1), costs)


@pytest.mark.parametrize("p", range(1, 6))
def test_zb_h2s_spans(p: int) -> None:
    """The worst worker's, the first one's: m (F + I + W) + (p - 1)(F + I - 2 W)."""
    for m in (2 * p - 1, 2 * p, 2 * p + 2):
        schedule = schedules.zb_h2(p, m).take(1)
        assert peaks(schedule) == (2 * p - 1,) * p
        assert spans(schedule) == [3 * m] * p
        for costs in every_costs():
            f, i, w = costs
            formula = m * costs.work + (p - 1) * (f + i - 2 * w)
            found = spans(schedule, costs)
            if w <= f and 2 * w <= f + i:
                assert max(found) == found[0] == formula
            else:
                assert max(found) > formula or p == 1


@pytest.mark.parametrize("p", range(2, 6))
def test_a_single_batch_gains_nothing_by_zb_h2_and_many_do(p: int) -> None:
    m, batches = 2 * p, 5
    for method, more in ((schedules.zb_h2, p - 1), (schedules.zb_h1, batches * (p - 1))):
        assert makespan(method(p, m).take(1)) == 3 * m + p - 1
        assert makespan(method(p, m).take(batches)) == batches * 3 * m + more


@given(stages, microbatches, st.data())
def test_flush_has_as_many_in_flight_as_are_asked_for(n: int, m: int, data: st.DataObject) -> None:
    more = data.draw(st.lists(st.integers(0, 3), min_size=n, max_size=n))
    depths = [n - s + sum(more[s:]) for s in range(n)]
    report = check(schedules.flush(n, m, in_flight=depths).take(2))
    assert report.peak_in_flight == tuple(min(m, depth) for depth in depths)


def test_counts_in_flight_fit_the_stages() -> None:
    assert schedules.flush(3, 5, in_flight=[5, 3, 1]).head == schedules.eager(3, 5).head
    wrong: list[Any] = [[3, 2], 3, [3, 2, 0], [3, 2, None]]
    for each in wrong:
        with pytest.raises(ScheduleError, match=r"for each of 3 stages|must be a whole num"):
            schedules.flush(3, 5, in_flight=each)
