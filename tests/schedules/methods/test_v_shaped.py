"""ZB-V, V-Half and V-Min: closed forms of their papers, and what the V looks like."""

from collections.abc import Callable

import pytest

from pipekit.schedules import OPS, Op, Schedule, ScheduleError, parse, v_half, v_min, zb_v
from tests.schedules.timing import Costs, makespan, peaks, spans

EQUAL = Costs()
METHODS = [zb_v, v_half, v_min]


def test_zb_v_of_two_workers() -> None:
    assert zb_v(4, 4).take(1) == parse("""
        worker 0 | F0 F1   F2   F0@3 I0@3 W0@3 F1@3 I1@3 W1@3 F3 I0 W0 F2@3 I2@3 W2@3 I1 W1 F3@3 I3@3 W3@3 I2 W2 I3 W3^@3^
        worker 1 | .  F0   F0@2 F1   F1@2 I0@2 W0@2 F2   I0   W0 F2@2 I1@2 W1@2 F3 I1 W1 F3@2 I2@2 W2@2 I2 I3@2 I3 W2 W3@2 W3^@2^
        """)


def test_v_min_of_two_workers() -> None:
    """The activations of two microbatches, as few as any two workers need."""
    assert v_min(4, 2).take(1) == parse("""
        worker 0 | F0 F1 .    F0@3 I0@3 F1@3 I1@3 I0   W0@3 I1 W1@3 W0   W1^@3^
        worker 1 | .  F0 F0@2 F1   F1@2 I0@2 I0   I1@2 I1 W0@2 W0   W1@2 W1^@2^
        """)


@pytest.mark.parametrize("method", METHODS)
def test_the_last_worker_has_two_stages_in_a_row(method: Callable[[int, int], Schedule]) -> None:
    assert method(8, 8).stage_workers == ((0,), (1,), (2,), (3,), (3,), (2,), (1,), (0,))


@pytest.mark.parametrize("p", range(1, 13))
def test_whole_microbatches_of_activations(p: int) -> None:
    """p of ZB-V, floor((p+2)/2) of V-Half, floor((p+4)/3) of V-Min; a pass has half a stage's."""
    for m in (2 * p, 3 * p + 1):
        assert max(peaks(zb_v(2 * p, m).take(1))) == 2 * p
        assert max(peaks(v_half(2 * p, m).take(1))) == 2 * ((p + 2) // 2) if p > 1 else 2
        assert max(peaks(v_min(2 * p, m).take(1))) == 2 * ((p + 4) // 3)


@pytest.mark.parametrize("p", range(1, 9))
def test_spans_in_equal_slots(p: int) -> None:
    """No bubble in ZB-V's spans; about a half and two thirds of 1F1B's 6 (p - 1) in the others."""
    for m in (2 * p, 4 * p):
        assert spans(zb_v(2 * p, m).take(1), EQUAL) == [6 * m] * p
        assert makespan(zb_v(2 * p, m).take(1), EQUAL) == 6 * m + p - 1
        half, least = (max(spans(v(2 * p, m).take(1), EQUAL)) - 6 * m for v in (v_half, v_min))
        assert half <= 3 * (p - 1)
        assert least <= 4 * (p - 1)


@pytest.mark.parametrize("p", range(1, 6))
@pytest.mark.parametrize("method", METHODS)
def test_fewer_microbatches_than_fill_the_pipeline(
    method: Callable[[int, int], Schedule], p: int
) -> None:
    for m in range(1, 2 * p):
        schedule = method(2 * p, m).take(1)
        assert max(peaks(schedule)) <= 2 * min(m, p)
        counts = {op: sum(t.op is op for t in schedule.workers[0]) for op in OPS}
        assert counts[Op.FORWARD] == counts[Op.BACKWARD_WEIGHT] == 2 * m


@pytest.mark.parametrize("method", METHODS)
def test_an_odd_number_of_stages_is_refused(method: Callable[[int, int], Schedule]) -> None:
    with pytest.raises(ScheduleError, match=r"use an even number of stages, not 5 \(one stage a"):
        method(5, 4)
