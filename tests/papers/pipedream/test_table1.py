"""What Table 1 is predicted with: configurations, schedules, bytes and formulas."""

from itertools import product

import pandas as pd
import pytest

import pipekit as pk
from pipekit import Plan, Profile, schedules
from pipekit.clusters import Cluster, flat
from pipekit.papers.pipedream import calibration, table1
from pipekit.papers.pipedream.table1 import Sent
from pipekit.profiling import LayerProfile
from pipekit.schedules import check

LAYERS = Profile.uniform(4, 0.01, 0.02, output_bytes=4e5, parameter_bytes=8e5)
UNEQUAL = Profile(
    tuple(
        LayerProfile(str(n), 0.001 * n, 0.002 * n, output_bytes=1e5 * n, parameter_bytes=2e5 * n)
        for n in (3, 1, 4, 1, 5)
    )
)


def test_configurations_are_replicas_joined_by_hyphens() -> None:
    assert table1.replicas_of("9-5-1-1") == [9, 5, 1, 1]
    assert table1.replicas_of("8") == [8]


@pytest.mark.parametrize("text", ["", "2-", "0-1", "2 - 1", "2--1"])
def test_what_is_no_configuration_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="write replicas like"):
        table1.replicas_of(text)


def test_the_ratio_column_is_the_quotient_of_the_speedups() -> None:
    assert table1.rows_consistent() == 7


@pytest.mark.parametrize(("bandwidth", "cost"), [*product([1e7, 1e8, 1e12], ["paper", "released"])])
def test_the_best_cut_for_the_planners_replicas_is_the_planners(
    bandwidth: float, cost: str
) -> None:
    cluster = flat(4, bandwidth)
    plan = pk.plan(UNEQUAL, cluster, cost=cost)
    ours = table1.best_cut(UNEQUAL, cluster, plan.replicas, cost)  # type: ignore[arg-type]
    assert ours.predicted_s == pytest.approx(plan.predicted_s)
    assert ours.in_flight == plan.in_flight


@pytest.mark.parametrize("replicas", [[2, 1, 1], [1, 2, 1], [3, 1], [4]])
def test_no_configuration_is_better_than_the_planners(replicas: list[int]) -> None:
    cluster = flat(4, 5e7)
    best = pk.plan(UNEQUAL, cluster).predicted_s
    assert table1.best_cut(UNEQUAL, cluster, replicas).predicted_s >= best * (1 - 1e-9)


def test_a_configuration_that_memory_does_not_hold_is_refused() -> None:
    with pytest.raises(ValueError, match="fits the workers' memory"):
        table1.best_cut(UNEQUAL, flat(2, 1e9, memory=1e5), [1, 1])


@pytest.mark.parametrize("replicas", [[2, 1, 1], [3, 2], [4], [1, 1]])
def test_twice_as_many_minibatches_can_be_in_flight(replicas: list[int]) -> None:
    plan = Plan.by_hand([1] * len(replicas), replicas=replicas)
    usual, deep = calibration.pipelined(plan, 24), table1.twice_in_flight(plan, 24)
    report = check(deep)
    assert report.peak_in_flight == tuple(2 * count for count in check(usual).peak_in_flight)
    for before, after in zip(usual.workers, deep.workers, strict=True):
        assert {t[:3] for t in before} == {t[:3] for t in after}
        assert len(before) == len(after)


def test_more_in_flight_hides_the_transfers_of_a_straight_pipeline() -> None:
    plan, cluster = Plan.by_hand([1] * 4), flat(4, 4e7)  # a transfer takes 10 ms, a stage 30 ms
    usual = calibration.simulated_seconds(LAYERS, plan, cluster)
    deep = calibration.simulated_seconds(LAYERS, plan, cluster, table1.twice_in_flight)
    assert usual > 1.2 * deep
    assert deep == pytest.approx(0.03, rel=0.01)


def test_one_at_a_time_is_slower_than_one_machine() -> None:
    plan = Plan.by_hand([2, 2])
    seconds = calibration.simulated_seconds(LAYERS, plan, flat(2, 1e8), table1.one_at_a_time)
    assert seconds > calibration.compute_seconds(LAYERS)


def test_the_closed_form_counts_rounds_and_cuts() -> None:
    assert table1.sent(LAYERS, calibration.data_parallel(LAYERS, 4)) == Sent(2 * 3 / 4 * 32e5, 0)
    straight = table1.sent(LAYERS, Plan.by_hand([1, 1, 2]))
    assert straight == Sent(0, 2 * 2 * 4e5)
    mixed = table1.sent(LAYERS, Plan.by_hand([3, 1], replicas=[2, 1]))
    assert mixed == Sent(2 * 1 / 2 * 24e5, 2 * 4e5)


@pytest.mark.parametrize("replicas", [[2, 1], [4], [1, 1, 1]])
def test_the_engines_counters_equal_the_closed_form(replicas: list[int]) -> None:
    balance = {1: [4], 2: [3, 1], 3: [1, 1, 2]}[len(replicas)]
    plan = Plan.by_hand(balance, replicas=replicas)
    cluster = flat(sum(replicas), 1e9)
    result = table1.run(LAYERS, plan, cluster, minibatches=4, faster=10)
    assert result.sent == pytest.approx(result.closed)
    assert result.excess == pytest.approx(0, abs=0.5)
    assert result.uneven == 0


def test_emulated_seconds_are_the_profiles_although_time_runs_faster() -> None:
    plan = Plan.by_hand([2, 2])
    result = table1.run(LAYERS, plan, flat(2, 1e9), minibatches=12, faster=3, repeats=3)
    assert result.emulated_s == pytest.approx(result.simulated_s, rel=0.5)


def test_the_busiest_link_carries_sums_and_both_cuts() -> None:
    plan, cluster = Plan.by_hand([2, 2], replicas=[2, 1]), flat(3, 1e6)
    first = (2 * 1 / 2 * 16e5 + 4e5) / 2 / 1e6
    assert table1.link_seconds(LAYERS, plan, cluster) == pytest.approx(max(first, 0.4))


def test_reductions_in_both_ways_of_counting() -> None:
    bsp, ours = Sent(1000, 0), Sent(50, 40)
    assert table1.reduction(ours, bsp) == pytest.approx(0.91)
    assert table1.reduction(ours, bsp, activations_once=True) == pytest.approx(0.93)
    assert table1.reduction(bsp, bsp) == 0


def vgg16() -> tuple[Profile, Cluster]:
    setting = calibration.TABLE1[1]
    return calibration.profile_of(setting), setting.machines()


def test_vgg16s_reduction_is_that_of_the_ledger() -> None:
    """The note of pipedream-table1-vgg16-8A-comm-reduction: a cut after pool5, 88.9 or 89.3 %."""
    profile, _ = vgg16()
    plan = Plan.by_hand([31, 9], rows=32, replicas=[7, 1])
    ours, bsp = (
        table1.sent(profile, plan),
        table1.sent(profile, calibration.data_parallel(profile, 8)),
    )
    assert 100 * table1.reduction(ours, bsp) == pytest.approx(88.9, abs=0.05)
    assert 100 * table1.reduction(ours, bsp, activations_once=True) == pytest.approx(89.3, abs=0.05)


def test_the_formula_without_overlap_gives_the_ledgers_misfit() -> None:
    assert table1.formula_speedup(8, (4, 1.47)) == pytest.approx(2.66, abs=0.005)
    assert table1.formula_speedup(16, (4, 1.47)) == pytest.approx(5.08, abs=0.005)
    assert table1.formula_speedup(4, (4, 1.47)) == pytest.approx(1.47)


def test_overheads() -> None:
    assert table1.overhead(2.35, 8) == pytest.approx(0.706, abs=5e-4)
    assert table1.overhead_removed(7.04, 2.35, 8) == pytest.approx(0.83, abs=5e-3)
    assert table1.overhead_removed(8, 2.35, 8) == 1


def test_data_parallelism_has_the_gradient_of_one_big_batch() -> None:
    assert table1.gradient_difference(3) < 1e-12
    assert schedules.optimal_in_flight([3]) == [1]


def test_bars_are_drawn_with_gaps_where_there_is_no_number() -> None:
    frame = pd.DataFrame(
        {"row": ["a", "b", "a", "b"], "source": ["x", "x", "y", "y"], "value": [1, None, 2, 4]}
    )
    figure = table1.bars(frame, title="A title", label="exact", x_title="speedup")
    assert [trace.name for trace in figure.data] == ["x", "y"]
    assert list(figure.layout.yaxis.ticktext) == ["a", "b"]
    assert figure.layout.title.text == "A title (exact)"
    assert figure.layout.xaxis.range[1] > 4
