"""Layers cut into stages, against every way to cut them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipekit.partition.balance import balance_by_cost, best_split, stage_sums
from tests.planning.enumeration import splits, sums

whole_costs = st.lists(st.integers(0, 20).map(float), min_size=1, max_size=9)


@given(whole_costs, st.integers(1, 9))
def test_the_costliest_stage_is_as_cheap_as_can_be(costs: list[float], stages: int) -> None:
    stages = min(stages, len(costs))
    balance = balance_by_cost(costs, stages)
    assert (len(balance), sum(balance)) == (stages, len(costs))
    assert min(balance) >= 1
    assert max(sums(costs, balance)) == min(
        max(sums(costs, split)) for split in splits(len(costs), stages)
    )


def test_equal_layers() -> None:
    assert balance_by_cost([1.0] * 8, 4) == [2, 2, 2, 2]


def test_a_dear_layer_is_alone() -> None:
    assert balance_by_cost([1.0, 1.0, 9.0, 1.0, 1.0], 3) == [2, 1, 2]


def test_of_equal_splits_the_first_stage_is_the_shortest() -> None:
    assert balance_by_cost([1.0, 1.0, 9.0], 2) == [2, 1]
    assert balance_by_cost([1.0, 9.0, 1.0, 1.0], 3) == [1, 1, 2]
    assert balance_by_cost([0.0, 0.0, 0.0], 2) == [1, 2]


def test_many_layers() -> None:
    assert balance_by_cost([1.0] * 120, 8) == [15] * 8


def test_costs_can_be_summed_in_place_of_compared() -> None:
    squares = stage_sums([3.0, 1.0, 1.0, 3.0]) ** 2
    assert best_split(squares, 3, np.add) == [1, 2, 1]


@pytest.mark.parametrize(("stages", "says"), [(3, "at most 2 stages"), (0, "at least 1")])
def test_impossible_numbers_of_stages(stages: int, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        balance_by_cost([1.0, 1.0], stages)
