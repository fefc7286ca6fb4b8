"""Looped breadth-first against Breadth-First Pipeline Parallelism (MLSys 2023)."""

import pytest

from pipekit.schedules import ScheduleError, interleaved, looped_bfs, parse
from tests.schedules.timing import every_costs, makespan, peaks


def test_two_workers_with_two_stages_each() -> None:
    assert looped_bfs(4, 3, workers=2).take(1) == parse("""
        worker 0 | F0 F1 F2 F0@2 F1@2 F2@2 . B0@2 - B1@2 - B2@2 - B0 - B1 - B2 -^@2^
        worker 1 | .  F0 F1 F2 F0@3 F1@3 F2@3 B0@3 - B1@3 - B2@3 - B0 - B1 - B2 -^@3^
        """)


@pytest.mark.parametrize("p", range(1, 5))
@pytest.mark.parametrize("v", [2, 3])
def test_the_bubble_is_interleaved_s_and_all_activations_are_kept(p: int, v: int) -> None:
    """(p - 1) / (v m) of the ideal time, m v passes; interleaved keeps p v (1 + (p-1) / (p v)),
    on the first worker, and two passes less on each one behind it."""
    for m in range(p, p + 5):
        loop, turns = (
            looped_bfs(p * v, m, workers=p).take(1),
            interleaved(p * v, m, workers=p).take(1),
        )
        assert peaks(loop) == (m * v,) * p
        if m >= p + 2 and m % p == 0:
            assert peaks(turns)[0] == p * v + p - 1
            assert peaks(turns) == tuple(p * v + p - 1 - 2 * w for w in range(p))
        for costs in every_costs(3):
            ideal = m * v * costs.work
            for schedule in (loop, turns):
                assert makespan(schedule, costs) == ideal + (p - 1) * costs.work


def test_what_cannot_be_shared_is_refused() -> None:
    with pytest.raises(ScheduleError, match=r"cannot be looped on 2.*one stage a worker is gpipe"):
        looped_bfs(2, 4, workers=2).take(1)
