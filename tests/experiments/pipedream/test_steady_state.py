import random

import pytest

from experiments.pipedream import STRAIGHT, one_layer_stages
from experiments.pipedream import steady_state as tl
from experiments.study.traces import EQUAL_SLOTS
from pipekit import schedules, simulate
from pipekit.traces import Trace


def test_figure_3_has_one_worker_active_and_figure_8_four() -> None:
    one = Trace.from_schedule(schedules.model_parallel(4).take(2), EQUAL_SLOTS)
    four = Trace.from_schedule(schedules.pipedream(4).take(30), EQUAL_SLOTS)
    assert (one.most_active, four.most_active) == (1, 4)
    assert tl.utilisation(four, STRAIGHT) == 1


def test_too_short_a_run_has_no_steady_state() -> None:
    with pytest.raises(ValueError, match="run at least 14"):
        tl.steady(Trace.from_schedule(schedules.pipedream([1, 1, 2]).take(12)), [1, 1, 2])


@pytest.mark.parametrize("replicas", [STRAIGHT, [1, 1, 2], [3, 2]])
@pytest.mark.parametrize("margin", [1, 2])
def test_the_shortest_run_has_a_steady_state_and_no_shorter_one(
    replicas: list[int], margin: int
) -> None:
    least = tl.window(replicas, 1, margin).minibatches
    tl.steady(Trace.from_schedule(schedules.pipedream(replicas).take(least)), replicas, margin)
    with pytest.raises(ValueError, match=f"run at least {least}"):
        tl.steady(
            Trace.from_schedule(schedules.pipedream(replicas).take(least - 1)), replicas, margin
        )


def test_all_parts_of_a_run_are_whole_rounds() -> None:
    assert tl.window([2, 1, 1], 5) == tl.Window(warmup=8, counted=6, drain=4)
    assert tl.window([3, 2], 1) == tl.Window(warmup=12, counted=6, drain=6)
    assert tl.window([4], 1).minibatches == 16
    assert tl.window([1, 1], 3, margin=3) == tl.Window(warmup=12, counted=3, drain=6)


def test_unequal_stages_idle_as_the_closed_form_says() -> None:
    draw = random.Random(1)
    times = [(draw.uniform(1, 5), draw.uniform(1, 5)) for _ in range(3)]
    trace = simulate(schedules.pipedream(3).take(60), one_layer_stages(times))
    whole = [sum(pair) for pair in times]
    idle = 1 - tl.utilisation(trace, [1, 1, 1])
    assert idle == pytest.approx(1 - sum(whole) / 3 / max(whole), rel=1e-9)
