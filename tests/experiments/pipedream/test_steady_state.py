import random

import pytest

from experiments.pipedream import STRAIGHT, one_layer_stages
from experiments.pipedream import steady_state as tl
from experiments.pipedream.steady_state import replica_vectors, with_links_as_stages
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


def test_a_run_made_for_a_window_counts_that_window() -> None:
    asked = tl.window([2, 1, 1], 5)
    trace = Trace.from_schedule(schedules.pipedream([2, 1, 1]).take(asked.minibatches), EQUAL_SLOTS)
    assert tl.steady(trace, [2, 1, 1])[2] == asked.counted


def test_unequal_stages_idle_as_the_closed_form_says() -> None:
    draw = random.Random(1)
    times = [(draw.uniform(1, 5), draw.uniform(1, 5)) for _ in range(3)]
    trace = simulate(schedules.pipedream(3).take(60), one_layer_stages(times))
    whole = [sum(pair) for pair in times]
    idle = 1 - tl.utilisation(trace, [1, 1, 1])
    assert idle == pytest.approx(1 - sum(whole) / 3 / max(whole), rel=1e-9)


def test_the_filling_of_the_pipeline_does_not_count() -> None:
    trace = simulate(schedules.pipedream(4).take(40), one_layer_stages([(1, 2)] * 4))
    assert tl.seconds_a_minibatch(trace, STRAIGHT) == pytest.approx(3)
    assert trace.makespan_s / 40 > 3.2


def test_replica_vectors_are_all_there() -> None:
    found = list(replica_vectors(8, 4))
    assert len(found) == len({tuple(vector) for vector in found}) == 35
    assert all(sum(vector) == 8 and min(vector) >= 1 for vector in found)
    assert [3, 2, 2, 1] in found


def test_a_link_is_one_more_stage() -> None:
    assert with_links_as_stages([1, 1, 1, 1]) == [7, 5, 3, 1]
    assert with_links_as_stages([2, 1, 1]) == [4, 3, 1]
