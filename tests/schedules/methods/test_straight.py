"""ZB-H1 and ZB-H2 against Zero Bubble Pipeline Parallelism (ICLR 2024), section 2."""

from inspect import cleandoc

import pytest

from pipekit.schedules import flush, parse, zb_h1, zb_h2
from tests.schedules.timing import Costs, every_costs, makespan, peaks, spans

PAPERS = cleandoc("""
    # ZB-H1
    time     | 1   2   3   4   5   6   7   8   9   10  11  12  13  14  15  16  17  18  19  20  21  22  23  24  25  26  27
    worker 0 | F0  F1  F2  F3  .   .   .   I0  W0  F4  I1  W1  F5  I2  W2  F6  I3  W3  F7  I4  W4  I5  W5  I6  W6  I7  W7^
    worker 1 | .   F0  F1  F2  .   .   I0  F3  I1  W0  F4  I2  W1  F5  I3  W2  F6  I4  W3  F7  I5  W4  I6  W5  I7  W6  W7^
    worker 2 | .   .   F0  F1  .   I0  F2  I1  F3  I2  W0  F4  I3  W1  F5  I4  W2  F6  I5  W3  F7  I6  W4  I7  W5  W6  W7^
    worker 3 | .   .   .   F0  I0  F1  I1  F2  I2  F3  I3  W0  F4  I4  W1  F5  I5  W2  F6  I6  W3  F7  I7  W4  W5  W6  W7^
    """)
EQUAL = Costs()


def test_zb_h1_of_four_workers_and_eight_microbatches() -> None:
    """Figure 3 above has one bubble of p - 1 slots a worker."""
    assert str(zb_h1(4, 8).take(1)) == PAPERS


def test_zb_h2_of_three_workers() -> None:
    assert zb_h2(3, 6).take(1) == parse("""
        worker 0 | F0 F1 F2 F3 F4 I0 W0 F5 I1 W1 I2 W2 I3 W3 I4 W4 I5 W5^
        worker 1 | .  F0 F1 F2 I0 F3 I1 F4 I2 W0 F5 I3 W1 I4 W2 I5 W3 W4 W5^
        worker 2 | .  .  F0 I0 F1 I1 F2 I2 F3 I3 F4 I4 W0 F5 I5 W1 W2 W3 W4 W5^
        """)


@pytest.mark.parametrize("p", range(1, 6))
def test_zb_h1s_makespan(p: int) -> None:
    """m (F + I + W) + (p - 1)(F + I - W) if W is the shortest, and only then, for p > 1."""
    for m in range(p, p + 4):
        schedule = zb_h1(p, m).take(1)
        assert max(peaks(schedule)) == min(p, m) == peaks(flush(p, m).take(1))[0]
        for costs in every_costs(4):
            f, i, w = costs
            formula = m * costs.work + (p - 1) * (f + i - w)
            found = makespan(schedule, costs)
            assert found == formula if w <= min(f, i) or p == 1 else found > formula
            assert found <= makespan(flush(p, m).take(1), costs)


@pytest.mark.parametrize("p", range(1, 6))
def test_zb_h2s_spans(p: int) -> None:
    """The worst worker's, the first one's: m (F + I + W) + (p - 1)(F + I - 2 W)."""
    for m in range(2 * p - 1, 2 * p + 3):
        schedule = zb_h2(p, m).take(1)
        assert peaks(schedule) == (2 * p - 1,) * p
        assert spans(schedule, EQUAL) == [3 * m] * p
        for costs in every_costs(4):
            f, i, w = costs
            formula = m * costs.work + (p - 1) * (f + i - 2 * w)
            found = spans(schedule, costs)
            if w <= f and 2 * w <= f + i:
                assert max(found) == found[0] == formula
            else:
                assert max(found) > formula or p == 1


@pytest.mark.parametrize("p", range(2, 6))
def test_a_single_batch_gains_nothing_by_zb_h2_and_many_do(p: int) -> None:
    m, batches = 2 * p, 5
    assert (
        makespan(zb_h2(p, m).take(1), EQUAL)
        == makespan(zb_h1(p, m).take(1), EQUAL)
        == 3 * m + p - 1
    )
    assert makespan(zb_h2(p, m).take(batches), EQUAL) == batches * 3 * m + p - 1
    assert makespan(zb_h1(p, m).take(batches), EQUAL) == batches * (3 * m + p - 1)
