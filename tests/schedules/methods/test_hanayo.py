"""Hanayo: waves of stages, within the activations of 1F1B's first worker."""

import pytest

from pipekit.schedules import ScheduleError, hanayo, parse
from tests.schedules.timing import Costs, every_costs, makespan, peaks


def test_a_wave_over_two_workers() -> None:
    assert hanayo(4, 2, workers=2).take(1) == parse("""
        worker 0 | F0 F1 . F0@3 B0@3 - F1@3 B1@3 - B0 - B1 -^@3^
        worker 1 | . F0 F0@2 F1 F1@2 . B0@2 - B0 B1@2 - B1 -^@2^
        """)


def test_the_stages_go_down_and_back_once_a_wave() -> None:
    homes = [workers[0] for workers in hanayo(12, 3, workers=3).take(1).stage_workers]
    assert homes == [0, 1, 2, 2, 1, 0] * 2


@pytest.mark.parametrize("p", range(1, 6))
@pytest.mark.parametrize("waves", [1, 2, 3])
def test_the_bubble_of_as_many_microbatches_as_workers(p: int, waves: int) -> None:
    """2 (p - 1) times the longer pass of a stage, which W waves make 2 W times as short."""
    schedule = hanayo(2 * waves * p, p, workers=p).take(1)
    assert max(peaks(schedule)) == 2 * waves * p
    for costs in every_costs(3):
        longer = max(costs.forward, costs.inputs + costs.weights)
        assert makespan(schedule, costs) == 2 * waves * p * costs.work + 2 * (p - 1) * longer


@pytest.mark.parametrize("p", range(2, 6))
def test_more_microbatches_have_the_same_bubble_if_passes_take_equally_long(p: int) -> None:
    for count in (2, 3):
        schedule = hanayo(2 * p, count * p, workers=p).take(1)
        assert max(peaks(schedule)) == 2 * p
        assert makespan(schedule, Costs(1, 1, 0)) == 4 * count * p + 2 * (p - 1)
        assert makespan(schedule, Costs(1, 1, 1)) > 6 * count * p + 4 * (p - 1)


def test_what_is_no_whole_wave_is_refused() -> None:
    with pytest.raises(ScheduleError, match="use a multiple of 4"):
        hanayo(6, 4, workers=2).take(1)
