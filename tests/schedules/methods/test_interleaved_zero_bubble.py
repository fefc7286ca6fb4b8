"""Interleaved 1F1B with backwards in two parts: between ZB-H1 and interleaved 1F1B."""

import pytest

from pipekit.schedules import ScheduleError, interleaved, interleaved_zero_bubble, parse
from tests.schedules.timing import Costs, every_costs, makespan, peaks


def test_two_workers_with_two_stages_each_and_split_backwards() -> None:
    assert interleaved_zero_bubble(4, 2, workers=2).take(1) == parse("""
        worker 0 | F0 F1 F0@2 F1@2 . I0@2 W0@2 I1@2 W1@2 I0 W0 I1 W1^@2^
        worker 1 | . F0 F1 F0@3 I0@3 F1@3 I1@3 W0@3 I0 W1@3 I1 W0 W1^@3^
        """)


@pytest.mark.parametrize("p", range(1, 5))
@pytest.mark.parametrize("v", [2, 3])
def test_the_makespan(p: int, v: int) -> None:
    """As ZB-H1's, in passes of a v-th of the length, so that the bubble is a v-th."""
    for m in range(p, p + 5):
        schedule = interleaved_zero_bubble(p * v, m, workers=p).take(1)
        if m % p == 0:
            assert peaks(schedule) == (p * v,) * p
        for costs in every_costs(3):
            f, i, w = costs
            if w <= min(f, i):
                assert makespan(schedule, costs) == m * v * costs.work + (p - 1) * (f + i - w)


def test_it_keeps_less_than_interleaved_and_is_shorter() -> None:
    whole, split = (
        interleaved(8, 8, workers=4).take(1),
        interleaved_zero_bubble(8, 8, workers=4).take(1),
    )
    assert (max(peaks(whole)), max(peaks(split))) == (11, 8)
    assert (makespan(whole, Costs()), makespan(split, Costs())) == (57, 51)


def test_what_cannot_be_shared_is_refused() -> None:
    with pytest.raises(ScheduleError, match=r"multiple of 2 from 4 \(one stage a worker is zb_h1"):
        interleaved_zero_bubble(5, 4, workers=2).take(1)
