"""Chimera against its paper (SC '21), section 3."""

import pytest

from pipekit.schedules import ScheduleError, chimera, parse
from tests.schedules.timing import Costs, every_costs, makespan, peaks


def test_four_workers_and_four_microbatches() -> None:
    """Figure 3: microbatches 0 and 1 go down, 2 and 3 up."""
    assert chimera(4, 4).take(1) == parse("""
        worker 0         | F0 F1 . F2@3 B2@3 F3@3 B3@3 B0 . B1^@3^3
        worker 1         | . F0 F2@2 F1 F3@2 B2@2 B0 B3@2 B1^@2^3
        worker 2 stage 1 | . F2 F0@2 F3 F1@2 B0@2 B2 B1@2 B3^3@2^
        worker 3 stage 0 | F2 F3 . F0@3 B0@3 F1@3 B1@3 B2 . B3^3@3^
        """)


@pytest.mark.parametrize("d", [2, 4, 6, 8])
def test_idle_over_total_and_activations(d: int) -> None:
    """(D-2)/(2N+D-2) if B = F, also for more units; (D-2)/(3N/2+D-2) if B = 2 F, at N = D only."""
    equal, double = Costs(1, 1, 0), Costs(1, 1, 1)  # a backward is whole: both parts together
    for units in (1, 2, 3):
        n = units * d
        schedule = chimera(d, n).take(1)
        idle = 1 - 2 * n / makespan(schedule, equal)
        assert idle == pytest.approx((d - 2) / (2 * n + d - 2))
        slower = 1 - 3 * n / makespan(schedule, double)
        formula = (d - 2) / (3 * n / 2 + d - 2)
        assert slower == pytest.approx(formula) if units == 1 or d == 2 else slower > formula
        half = [d // 2 + 1 + w for w in range(d // 2)]
        assert peaks(schedule) == (*half, *reversed(half))


@pytest.mark.parametrize("d", [2, 4, 6])
def test_a_worker_and_its_mirror_image_do_the_same(d: int) -> None:
    for n in range(2, 3 * d, 2):
        if n % d == 0:
            rows = chimera(d, n).take(1).workers
            for w in range(d):
                assert [t[:2] for t in rows[w]][: 2 * n] == [t[:2] for t in rows[d - 1 - w]][
                    : 2 * n
                ]


def test_any_number_of_microbatches() -> None:
    for n in range(1, 10):
        schedule = chimera(4, n).take(1)
        for costs in every_costs(2):
            assert makespan(schedule, costs) >= n * (costs.work)


def test_an_odd_number_of_stages_is_refused() -> None:
    with pytest.raises(ScheduleError, match="one stage more or less, or flush"):
        chimera(3, 4).take(1)
