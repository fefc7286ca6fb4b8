import random

import pytest

from pipekit import schedules, simulate
from pipekit.papers.pipedream import steady_state as tl
from pipekit.papers.pipedream.steady_state import replica_vectors, with_links_as_stages
from pipekit.papers.pipedream.timelines.start_up import one_layer_stages
from pipekit.papers.timelines import EQUAL_SLOTS, most_active, starts
from pipekit.traces import Trace

STRAIGHT = [1, 1, 1, 1]


def test_figure_3_has_one_worker_active_and_figure_8_four() -> None:
    one = Trace.from_schedule(schedules.model_parallel(4, 2), EQUAL_SLOTS)
    four = Trace.from_schedule(schedules.pipedream(4, 30), EQUAL_SLOTS)
    assert (most_active(one), most_active(four)) == (1, 4)
    assert starts(four)["BACKWARD", 0, 0] == 7
    assert tl.utilisation(four, STRAIGHT) == 1


def test_too_short_a_run_has_no_steady_state() -> None:
    with pytest.raises(ValueError, match="run at least 26"):
        tl.steady(Trace.from_schedule(schedules.pipedream(4, 20)), [1, 1, 2])


def test_unequal_stages_idle_as_the_closed_form_says() -> None:
    draw = random.Random(1)
    times = [(draw.uniform(1, 5), draw.uniform(1, 5)) for _ in range(3)]
    trace = simulate(schedules.pipedream(3, 60), one_layer_stages(times))
    whole = [sum(pair) for pair in times]
    assert tl.idle_error(whole, 1 - tl.utilisation(trace, [1, 1, 1])) < 1e-9
    assert tl.idle_error([1, 3], 1 / 3) == pytest.approx(0, abs=1e-12)
    assert tl.idle_error([1, 3], 0.5) == pytest.approx(0.5)


def test_by_the_clock_a_stage_that_gets_ahead_looks_busier() -> None:
    times = [(5.0, 5.0), (5.0, 4.9), (5.0, 5.05)]
    trace = simulate(schedules.pipedream(3, 60), one_layer_stages(times))
    equal = Trace.from_schedule(schedules.pipedream(3, 60), EQUAL_SLOTS)
    assert tl.clock_utilisation(equal, [1, 1, 1]) == tl.utilisation(equal, [1, 1, 1]) == 1
    assert tl.clock_utilisation(trace, [1, 1, 1]) >= tl.utilisation(trace, [1, 1, 1]) - 1e-9


def test_replica_vectors_are_all_there() -> None:
    found = list(replica_vectors(8, 4))
    assert len(found) == len({tuple(vector) for vector in found}) == 35
    assert all(sum(vector) == 8 and min(vector) >= 1 for vector in found)
    assert [3, 2, 2, 1] in found


def test_a_link_is_one_more_stage() -> None:
    assert with_links_as_stages([1, 1, 1, 1]) == [7, 5, 3, 1]
    assert with_links_as_stages([2, 1, 1]) == [4, 3, 1]
