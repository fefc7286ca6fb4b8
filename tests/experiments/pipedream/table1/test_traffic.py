"""Bytes that plans send, in closed form and by the engine's counters."""

import pytest

from experiments.pipedream.table1 import calibration, rows, speeds, traffic
from experiments.pipedream.table1.traffic import Sent
from pipekit import Plan, Profile
from pipekit.clusters import flat

LAYERS = Profile.uniform(4, 0.01, 0.02, output_bytes=4e5, parameter_bytes=8e5)


def test_the_closed_form_counts_rounds_and_cuts() -> None:
    assert traffic.sent(LAYERS, speeds.data_parallel(LAYERS, 4)) == Sent(2 * 3 / 4 * 32e5, 0)
    straight = traffic.sent(LAYERS, Plan.by_hand([1, 1, 2]))
    assert straight == Sent(0, 2 * 2 * 4e5)
    mixed = traffic.sent(LAYERS, Plan.by_hand([3, 1], replicas=[2, 1]))
    assert mixed == Sent(2 * 1 / 2 * 24e5, 2 * 4e5)


def test_the_busiest_link_carries_sums_and_both_cuts() -> None:
    plan, cluster = Plan.by_hand([2, 2], replicas=[2, 1]), flat(3, 1e6)
    first = (2 * 1 / 2 * 16e5 + 4e5) / 2 / 1e6
    assert traffic.link_seconds(LAYERS, plan, cluster) == pytest.approx(max(first, 0.4))


def test_reductions_in_both_ways_of_counting() -> None:
    bsp, ours = Sent(1000, 0), Sent(50, 40)
    assert traffic.reduction(ours, bsp) == pytest.approx(0.91)
    assert traffic.reduction(ours, bsp, activations_once=True) == pytest.approx(0.93)
    assert traffic.reduction(bsp, bsp) == 0


def test_vgg16s_reduction_is_that_of_the_ledger() -> None:
    """The note of pipedream-table1-vgg16-8A-comm-reduction: a cut after pool5, 88.9 or 89.3 %."""
    profile = calibration.profile_of(rows.TABLE1[1])
    plan = Plan.by_hand([31, 9], rows=32, replicas=[7, 1])
    ours, bsp = (
        traffic.sent(profile, plan),
        traffic.sent(profile, speeds.data_parallel(profile, 8)),
    )
    assert 100 * traffic.reduction(ours, bsp) == pytest.approx(88.9, abs=0.05)
    assert 100 * traffic.reduction(ours, bsp, activations_once=True) == pytest.approx(
        89.3, abs=0.05
    )


def test_the_formula_without_overlap_gives_the_ledgers_misfit() -> None:
    assert traffic.formula_speedup(8, (4, 1.47)) == pytest.approx(2.66, abs=0.005)
    assert traffic.formula_speedup(16, (4, 1.47)) == pytest.approx(5.08, abs=0.005)
    assert traffic.formula_speedup(4, (4, 1.47)) == pytest.approx(1.47)
