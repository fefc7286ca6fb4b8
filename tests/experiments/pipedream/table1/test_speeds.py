"""Steady states and speeds of plans."""

from dataclasses import replace

import pytest

from experiments.pipedream.table1 import speeds
from experiments.study.costs import emulate_at_pace, stretched
from pipekit import Plan, Profile, simulate
from pipekit.clusters import Cluster, flat
from pipekit.engine import Run
from pipekit.schedules import Schedule, check
from tests.emulation.own_time import own_time

LAYERS = Profile.uniform(4, 0.01, 0.02, output_bytes=4e5, parameter_bytes=8e5)


@pytest.mark.parametrize("replicas", [[2, 1, 1], [3, 2], [4], [1, 1]])
def test_twice_as_many_minibatches_can_be_in_flight(replicas: list[int]) -> None:
    plan = Plan.by_hand([1] * len(replicas), replicas=replicas)
    usual, deep = speeds.pipelined(plan).take(24), speeds.twice_in_flight(plan).take(24)
    report = check(deep)
    assert report.peak_in_flight == tuple(2 * count for count in check(usual).peak_in_flight)
    for before, after in zip(usual.workers, deep.workers, strict=True):
        assert {t[:3] for t in before} == {t[:3] for t in after}
        assert len(before) == len(after)


def test_more_in_flight_hides_the_transfers_of_a_straight_pipeline() -> None:
    plan, cluster = Plan.by_hand([1] * 4), flat(4, 4e7)  # a transfer takes 10 ms, a stage 30 ms
    usual = speeds.simulated_seconds(LAYERS, plan, cluster)
    deep = speeds.simulated_seconds(LAYERS, plan, cluster, speeds.twice_in_flight)
    assert usual > 1.2 * deep
    assert deep == pytest.approx(0.03, rel=0.01)


def test_one_at_a_time_is_slower_than_one_machine() -> None:
    plan = Plan.by_hand([2, 2])
    seconds = speeds.simulated_seconds(LAYERS, plan, flat(2, 1e8), speeds.one_at_a_time)
    assert seconds > speeds.compute_seconds(LAYERS)


def test_overheads() -> None:
    assert speeds.overhead(2.35, 8) == pytest.approx(0.706, abs=5e-4)
    assert speeds.overhead_removed(7.04, 2.35, 8) == pytest.approx(0.83, abs=5e-3)
    assert speeds.overhead_removed(8, 2.35, 8) == 1


def test_the_median_of_the_emulations_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each emulation is the simulation of a machine that is so many times as slow."""
    slowness = iter([1.0, 1.3, 1.04, 1.02])
    paces = []

    def instead(
        table: Schedule, profile: Profile, plan: Plan, cluster: Cluster, faster: float
    ) -> Run:
        paces.append(faster)
        with own_time():
            run = emulate_at_pace(table, profile, plan, None, faster)
        trace = simulate(table, stretched(profile, next(slowness)), plan, cluster)
        return replace(run, other_trace=trace)

    monkeypatch.setattr(speeds, "emulate_at_pace", instead)
    free = flat(2, float("inf"))
    result = speeds.run(LAYERS, Plan.by_hand([2, 2]), free, minibatches=12, faster=3, repeats=3)
    assert paces == [3, 3, 1.5, 1.5]  # one was 30 % too slow
    assert result.simulated_s == pytest.approx(0.06)
    assert result.seconds == pytest.approx(1.02 * 0.06)
    assert result.only(1).seconds == pytest.approx(1.04 * 0.06)


def test_an_emulation_takes_what_the_profile_says() -> None:
    plan = Plan.by_hand([2, 2])
    with own_time():
        result = speeds.run(LAYERS, plan, flat(2, 1e9), minibatches=12, faster=3, repeats=3)
    assert result.timed.label == "emulated"
    assert result.seconds == pytest.approx(result.simulated_s)
