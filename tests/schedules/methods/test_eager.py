"""Eager 1F1B: as long as Flush where links cost nothing, and shorter where they take time."""

import pytest

from pipekit.clusters import flat
from pipekit.profiling import Profile
from pipekit.schedules import eager, flush, parse
from pipekit.simulation import simulate
from tests.schedules.timing import every_costs, makespan, peaks


def test_two_workers() -> None:
    assert eager(2, 4).take(1) == parse("""
        worker 0 | F0 F1 F2 . . B0 - F3 B1 - . B2 - . B3 -^
        worker 1 | . F0 B0 - F1 B1 - F2 B2 - F3 B3 -^
        """)


def test_three_workers_begin_as_alpas_do() -> None:
    """The table in the docstring of Alpa's OverlapFriendlyPipeDreamSchedule."""
    starts = ["F0 F1 F2 F3 F4 B0 F5", "F0 F1 F2 B0 F3 B1", "F0 B0 F1 B1 F2"]
    for tasks, start in zip(eager(3, 8).take(1).workers, starts, strict=True):
        assert " ".join(task.label for task in tasks).startswith(start)


@pytest.mark.parametrize("p", range(1, 6))
def test_without_links_it_is_flushs_length_with_more_in_flight(p: int) -> None:
    m = 2 * p
    assert peaks(eager(p, m).take(1)) == tuple(2 * (p - w) - 1 for w in range(p))
    for costs in every_costs(3):
        assert makespan(eager(p, m).take(1), costs) == makespan(flush(p, m).take(1), costs)


def test_a_message_that_takes_as_long_as_a_forward_keeps_nobody_waiting() -> None:
    """In the steady state: the fill and the drain have p - 1 messages each."""
    p, m = 4, 16
    profile = Profile.uniform(p, 1.0, 2.0, output_bytes=1.0)
    links = flat(p, 1.0)  # bytes/s
    whole = simulate(eager(p, m).take(1), profile, cluster=links).makespan_s
    assert whole == pytest.approx(3 * (m + p - 1) + 2 * (p - 1))
    assert simulate(flush(p, m).take(1), profile, cluster=links).makespan_s > 1.2 * whole
