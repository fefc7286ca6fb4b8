"""Steady states and speeds of plans."""

import pytest

from experiments.pipedream.table1 import speeds
from pipekit import Plan, Profile
from pipekit.clusters import flat
from pipekit.schedules import check

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
