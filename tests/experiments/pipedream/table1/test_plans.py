"""Plans and rows of Table 1: bytes, the best cut, fitted bandwidths; systems and claims."""

import math
from itertools import product

import pytest

import pipekit as pk
from experiments.pipedream.table1 import plans
from experiments.pipedream.table1.plans import FOUR, Sent, Setting, best_cut
from experiments.pipedream.table1.rows import BSP, PIPEDREAM, SYSTEMS, Ran, Row
from experiments.study.claims import Emulated
from pipekit import Plan, Profile
from pipekit.clusters import flat
from pipekit.profiling import LayerProfile
from pipekit.schedules import check
from tests.emulation.own_time import own_time

LAYERS = Profile.uniform(4, 0.01, 0.02, output_bytes=4e5, parameter_bytes=8e5)


@pytest.mark.parametrize("replicas", [[2, 1, 1], [3, 2]])
def test_twice_as_many_minibatches_can_be_in_flight(replicas: list[int]) -> None:
    plan = Plan.by_hand([1] * len(replicas), replicas=replicas)
    usual, deep = plans.pipelined(plan).take(24), plans.twice_in_flight(plan).take(24)
    report = check(deep)
    assert report.peak_in_flight == tuple(2 * count for count in check(usual).peak_in_flight)
    for before, after in zip(usual.workers, deep.workers, strict=True):
        assert {t[:3] for t in before} == {t[:3] for t in after}
        assert len(before) == len(after)


def test_a_replica_may_go_on_before_its_rounds_sum_is_there() -> None:
    plan = Plan.by_hand([1, 1], replicas=[3, 1])
    usual, late = plans.pipelined(plan).take(24), plans.sums_a_round_late(plan).take(24)
    check(late)
    reads = [{t[:3]: t.version for t in each.workers[0] if t.op.is_pass} for each in (usual, late)]
    assert reads[0].keys() == reads[1].keys()
    assert all(reads[1][each] == max(0, version - 1) for each, version in reads[0].items())
    assert late.workers[3] == usual.workers[3]


def test_the_closed_form_counts_rounds_and_cuts() -> None:
    assert plans.sent(LAYERS, plans.data_parallel(LAYERS, 4)) == Sent(2 * 3 / 4 * 32e5, 0)
    straight = plans.sent(LAYERS, Plan.by_hand([1, 1, 2]))
    assert straight == Sent(0, 2 * 2 * 4e5)
    mixed = plans.sent(LAYERS, Plan.by_hand([3, 1], replicas=[2, 1]))
    assert mixed == Sent(2 * 1 / 2 * 24e5, 2 * 4e5)


UNEQUAL = Profile(
    tuple(
        LayerProfile(str(n), 0.001 * n, 0.002 * n, output_bytes=1e5 * n, parameter_bytes=2e5 * n)
        for n in (3, 1, 4, 1, 5)
    )
)


@pytest.mark.parametrize(("bandwidth", "cost"), [*product([1e7, 1e8, 1e12], ["paper", "released"])])
def test_the_best_cut_for_a_plans_replicas_is_the_planners(bandwidth: float, cost: str) -> None:
    cluster = flat(4, bandwidth)
    plan = pk.plan(UNEQUAL, cluster, cost=cost)
    ours = best_cut(UNEQUAL, cluster, plan.replicas, cost)  # type: ignore[arg-type]
    assert ours.predicted_s == pytest.approx(plan.predicted_s)
    assert ours.in_flight == plan.in_flight


def test_a_configuration_that_memory_does_not_hold_is_refused() -> None:
    with pytest.raises(ValueError, match="fits the workers' memory"):
        best_cut(UNEQUAL, flat(2, 1e9, memory=1e5), [1, 1])


def test_several_cells_are_met_in_the_geometric_mean() -> None:
    cells = [(LAYERS, flat(4, 1e9), 2.0), (LAYERS, flat(8, 1e9), 5.0)]
    bandwidth = plans.effective(cells)
    ratios = [
        plans.bsp_speedup(profile, flat(cluster.workers, bandwidth)) / speedup
        for profile, cluster, speedup in cells
    ]
    assert math.prod(ratios) == pytest.approx(1, rel=1e-6)
    assert min(ratios) < 0.99


EQUAL = Profile.uniform(4, 0.04, 0.08, output_bytes=1e5, parameter_bytes=3.2e7)
"""0.48 s a minibatch on one machine."""


def ran(*seconds: float, sent: float) -> Ran:
    return Ran(Emulated(seconds[0], seconds), Sent(sent, 0))


def row_of(setting: Setting, **systems: Ran) -> Row:
    return Row(setting, EQUAL, flat(4, 1e9), runs=systems)


FASTER = row_of(FOUR, BSP=ran(0.24, 0.2, 0.3, sent=100), PipeDream=ran(0.08, 0.1, 0.06, sent=25))
"""Emulated three times: BSP takes 0.24 s in the middle, the plan 0.08 s."""


def test_speedups_are_over_one_machine() -> None:
    assert FASTER.speedup(BSP) == pytest.approx(2)
    assert FASTER.speedup() == pytest.approx(6)
    assert FASTER.over_bsp() == pytest.approx(3)
    assert FASTER.saved() == pytest.approx(75)
    half = Ran(Emulated(1, ()), Sent(10, 40))
    assert row_of(FOUR, BSP=FASTER.runs[BSP], PipeDream=half).saved() == pytest.approx(50)
    assert row_of(FOUR, BSP=FASTER.runs[BSP], PipeDream=half).saved(once=True) == pytest.approx(70)
    assert FASTER.in_round(1).over_bsp() == pytest.approx(2)


def test_what_is_not_emulated_is_simulated() -> None:
    simulated = FASTER.simulated
    assert simulated.speedup(BSP) == pytest.approx(0.48 / simulated.seconds(BSP)) != 2
    assert [FASTER.seconds(name) > 0 for name in SYSTEMS] == [True] * 4
    free = Row(FOUR, EQUAL, flat(4, float("inf")))
    assert free.speedup(BSP) == pytest.approx(4)


def test_an_emulation_takes_what_the_profile_says() -> None:
    plan = Plan.by_hand([2, 2])
    with own_time():
        timed = Row(FOUR, EQUAL, flat(2, 1e9), given=plan).ran(PIPEDREAM, 12, 12, repeats=3).timed
    assert timed.label == "emulated"
    assert timed.seconds == pytest.approx(timed.simulated_s)


def test_the_engines_counters_equal_the_closed_form() -> None:
    plan = Plan.by_hand([3, 1], replicas=[2, 1])
    found = Row(FOUR, EQUAL, flat(3, 1e9), given=plan).ran(PIPEDREAM, 4, faster=100)
    assert found.sent == pytest.approx(plans.sent(EQUAL, plan))
