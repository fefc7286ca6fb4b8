"""Layers shared out among stages."""

from itertools import combinations, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from pipekit.engine.balance import balance_by_cost, layer_costs
from tests.engine.examples import cumulative

whole_costs = st.lists(st.integers(0, 20).map(float), min_size=1, max_size=9)


def dearest(costs: list[float], balance: list[int]) -> float:
    return max(sum(costs[a : a + n]) for a, n in zip(cumulative(balance), balance, strict=True))


@given(whole_costs, st.integers(1, 9))
def test_the_dearest_stage_is_as_cheap_as_can_be(costs: list[float], stages: int) -> None:
    stages = min(stages, len(costs))
    balance = balance_by_cost(costs, stages)
    assert len(balance) == stages
    assert sum(balance) == len(costs)
    assert min(balance) >= 1
    splits = (
        [b - a for a, b in pairwise([0, *edges, len(costs)])]
        for edges in combinations(range(1, len(costs)), stages - 1)
    )
    best = min(splits, key=lambda split: (dearest(costs, split), split))
    assert dearest(costs, balance) == dearest(costs, best)


def test_equal_layers() -> None:
    assert balance_by_cost([1.0] * 8, 4) == [2, 2, 2, 2]


def test_a_dear_layer_is_alone() -> None:
    assert balance_by_cost([1.0, 1.0, 9.0, 1.0, 1.0], 3) == [2, 1, 2]


def test_costs_are_shares_of_parameters_and_operations() -> None:
    model = nn.Sequential(nn.Linear(2, 2, bias=False), nn.ReLU(), nn.Linear(2, 6, bias=False))
    assert layer_costs(model, [30, 10, 0]) == [0.25 + 0.75, 0.25, 0.75]
    assert layer_costs(nn.Sequential(nn.ReLU()), [0]) == [0.0]


def test_too_many_stages() -> None:
    with pytest.raises(ValueError, match="at most 2 stages"):
        balance_by_cost([1.0, 1.0], 3)


def test_many_layers() -> None:
    balance = balance_by_cost([1.0] * 120, 8)
    assert balance == [15] * 8
