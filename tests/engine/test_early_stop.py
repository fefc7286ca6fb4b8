"""Where a run ends early, whoever says so."""

import threading
from typing import Any

import pytest

from pipekit import schedules
from pipekit.engine.feed import StopPoint
from pipekit.schedules.lowering.boundaries import PossibleStops, possible_stops

RATES = """
    worker 0 | F0 F1 .  B0 B1^ F2 F3 .  B2 B3^
    worker 1 | .  F0 B0^ F1 B1^ . F2 B2^ F3 B3^
"""
"""The first stage is updated every other batch."""


def test_of_two_that_fail_at_the_same_time_the_earlier_counts() -> None:
    stop_point = StopPoint()
    others = list[threading.Thread]()

    class Compared(int):
        """Another worker fails while this one is compared with what is known."""

        def __lt__(self, other: Any) -> bool:
            others.append(threading.Thread(target=stop_point.at, args=(4,)))
            others[0].start()
            others[0].join(0.2)  # it waits for its turn, or has had it
            return super().__lt__(other)

    stop_point.at(Compared(8))
    others[0].join()
    assert stop_point.microbatch == 4


@pytest.mark.parametrize(
    ("ends", "microbatches"),
    [
        (
            PossibleStops((range(4), range(8, 12))),
            {0: 0, 3: 0, 4: None, 7: None, 8: 8, 11: 8, 12: None},
        ),
        (PossibleStops((range(4),), 4, begin=4), {0: None, 3: None, 4: 4, 7: 4, 8: 8, 1001: 1000}),
        (
            PossibleStops((range(2),), 4),
            {0: 0, 1: 0, 2: None, 3: None, 4: 4, 5: 4, 6: None, 401: 400},
        ),
        (PossibleStops(), {0: None}),
    ],
)
def test_a_failure_ends_a_run_before_its_batch_if_at_all(
    ends: PossibleStops, microbatches: dict[int, int | None]
) -> None:
    assert {k: ends.before(k) for k in microbatches} == microbatches
    assert {k for k in microbatches if k in ends} == {
        k for k, cut in microbatches.items() if k == cut
    }


def test_a_failure_does_not_end_a_run_where_updates_have_seen_the_batch_before() -> None:
    table = schedules.parse(RATES)
    for schedule in (table, table.repeat()):
        ends = possible_stops(schedule)
        assert [ends.before(k) for k in range(4)] == [0, None, 2, None]
