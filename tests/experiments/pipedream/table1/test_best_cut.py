"""The best cut for a configuration: beside the planner's own."""

from itertools import product

import pytest

import pipekit as pk
from experiments.pipedream.table1.best_cut import best_cut
from pipekit import Profile
from pipekit.clusters import flat
from pipekit.profiling import LayerProfile

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


@pytest.mark.parametrize("replicas", [[2, 1, 1], [1, 2, 1], [3, 1], [4]])
def test_no_configuration_is_better_than_the_planners(replicas: list[int]) -> None:
    cluster = flat(4, 5e7)
    best = pk.plan(UNEQUAL, cluster).predicted_s
    assert best_cut(UNEQUAL, cluster, replicas).predicted_s >= best * (1 - 1e-9)


def test_a_configuration_that_memory_does_not_hold_is_refused() -> None:
    with pytest.raises(ValueError, match="fits the workers' memory"):
        best_cut(UNEQUAL, flat(2, 1e9, memory=1e5), [1, 1])
