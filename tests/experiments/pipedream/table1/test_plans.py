"""Plans: their speeds, the bytes that they send, and the best cut for given replicas."""

from itertools import product

import pytest

import pipekit as pk
from experiments.pipedream.table1 import plans
from experiments.pipedream.table1.plans import Sent, best_cut
from pipekit import Plan, Profile
from pipekit.clusters import flat
from pipekit.profiling import LayerProfile
from pipekit.schedules import check

LAYERS = Profile.uniform(4, 0.01, 0.02, output_bytes=4e5, parameter_bytes=8e5)


@pytest.mark.parametrize("replicas", [[2, 1, 1], [3, 2], [4], [1, 1]])
def test_twice_as_many_minibatches_can_be_in_flight(replicas: list[int]) -> None:
    plan = Plan.by_hand([1] * len(replicas), replicas=replicas)
    usual, deep = plans.pipelined(plan).take(24), plans.twice_in_flight(plan).take(24)
    report = check(deep)
    assert report.peak_in_flight == tuple(2 * count for count in check(usual).peak_in_flight)
    for before, after in zip(usual.workers, deep.workers, strict=True):
        assert {t[:3] for t in before} == {t[:3] for t in after}
        assert len(before) == len(after)


def test_the_closed_form_counts_rounds_and_cuts() -> None:
    assert plans.sent(LAYERS, plans.data_parallel(LAYERS, 4)) == Sent(2 * 3 / 4 * 32e5, 0)
    straight = plans.sent(LAYERS, Plan.by_hand([1, 1, 2]))
    assert straight == Sent(0, 2 * 2 * 4e5)
    mixed = plans.sent(LAYERS, Plan.by_hand([3, 1], replicas=[2, 1]))
    assert mixed == Sent(2 * 1 / 2 * 24e5, 2 * 4e5)


def test_reductions_in_both_ways_of_counting() -> None:
    bsp, ours = Sent(1000, 0), Sent(50, 40)
    assert plans.reduction(ours, bsp) == pytest.approx(0.91)
    assert plans.reduction(ours, bsp, activations_once=True) == pytest.approx(0.93)
    assert plans.reduction(bsp, bsp) == 0


UNEQUAL = Profile(
    tuple(
        LayerProfile(str(n), 0.001 * n, 0.002 * n, output_bytes=1e5 * n, parameter_bytes=2e5 * n)
        for n in (3, 1, 4, 1, 5)
    )
)


@pytest.mark.parametrize(("bandwidth", "cost"), [*product([1e7, 1e8, 1e12], ["paper", "released"])])
def test_the_best_cut_for_the_planners_replicas_is_the_planners(
    bandwidth: float, cost: str
) -> None:
    cluster = flat(4, bandwidth)
    plan = pk.plan(UNEQUAL, cluster, cost=cost)
    ours = best_cut(UNEQUAL, cluster, plan.replicas, cost)  # type: ignore[arg-type]
    assert ours.predicted_s == pytest.approx(plan.predicted_s)
    assert ours.in_flight == plan.in_flight


def test_a_configuration_that_memory_does_not_hold_is_refused() -> None:
    with pytest.raises(ValueError, match="fits the workers' memory"):
        best_cut(UNEQUAL, flat(2, 1e9, memory=1e5), [1, 1])
