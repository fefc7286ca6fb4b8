"""In which order workers sum gradients that share stages with different others."""

import pytest

from pipekit.schedules import flush, interleaved, parse, pipedream, replicate
from pipekit.schedules.lowering.sums import sum_order
from tests.engine.replicas.shared_tables import at_random, down_then_up, two_directions


def test_stages_of_one_worker_are_not_summed_with_anybody() -> None:
    assert sum_order(flush(3, 4).take(2)).head == ()
    assert sum_order(interleaved(4, 4, workers=2).take(2)).head == ()


def test_sums_come_as_their_gradients_do() -> None:
    assert sum_order(pipedream([2, 1]).take(3)).head == ((0, 1), (0, 2))
    assert sum_order(replicate(flush(2, 2).take(2), 2)).head == ((1, 1), (0, 1), (1, 2), (0, 2))
    assert sum_order(two_directions(2, 2, 1)).head == ((1, 1), (0, 1))


def test_both_ends_have_one_order() -> None:
    """Down, then up: worker 0 adds to stage 0 first, and worker 1 to stage 1."""
    assert sum_order(down_then_up(2, 4, 2)).head == ((1, 1), (0, 1), (1, 2), (0, 2))


def test_updates_of_a_stage_stay_in_order() -> None:
    """The gradients of the second are complete before those of the first."""
    schedule = parse("""
        # mine; batches of 1
        worker 0         | F2 B2^0^2
        worker 1 stage 0 | F1 F0 B1 B0^0^2
        """)
    assert sum_order(schedule).head == ((0, 1), (0, 2))


@pytest.mark.parametrize("seed", range(20))
def test_every_sum_comes_once(seed: int) -> None:
    schedule = at_random(seed)
    shared = [s for s, workers in enumerate(schedule.stage_workers) if len(workers) > 1]
    wanted = [(s, 1 + u) for s in shared for u in range(len(schedule.updates[s]))]
    assert sorted(sum_order(schedule).head) == wanted
