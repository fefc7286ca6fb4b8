"""Stages of about equal cost, against every way to cut the layers."""

from statistics import pvariance

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipekit.planning import balance
from tests.planning.enumeration import splits, sums

costs_of_layers = st.lists(
    st.integers(0, 30).map(float) | st.floats(0.001, 1e3), min_size=1, max_size=10
)


@given(costs_of_layers, st.integers(1, 5))
def test_variance_is_the_least_that_there_is(costs: list[float], stages: int) -> None:
    stages = min(stages, len(costs))
    ours = balance(costs, stages, "variance")
    least = min(pvariance(sums(costs, split)) for split in splits(len(costs), stages))
    assert len(ours) == stages
    assert pvariance(sums(costs, ours)) == pytest.approx(least, rel=1e-9, abs=1e-9)


@given(costs_of_layers, st.integers(1, 5))
def test_max_is_the_least_that_there_is(costs: list[float], stages: int) -> None:
    stages = min(stages, len(costs))
    ours = balance(costs, stages, "max")
    least = min(max(sums(costs, split)) for split in splits(len(costs), stages))
    assert max(sums(costs, ours)) == pytest.approx(least, rel=1e-12)


@settings(max_examples=300)
@given(
    st.lists(st.floats(0, 1) | st.sampled_from([0.0, 0.01, 1.0]), min_size=1, max_size=40),
    st.integers(1, 12),
)
def test_blocks_differ_by_no_more_than_the_costliest_layer(costs: list[float], stages: int) -> None:
    stages = min(stages, len(costs))
    ours = balance(costs, stages, "block")
    assert (len(ours), sum(ours)) == (stages, len(costs))
    assert min(ours) >= 1
    blocks = sums(costs, ours)
    assert max(blocks) - min(blocks) <= max(costs) * (1 + 1e-9)


def test_equal_layers_give_equal_stages() -> None:
    for by in ("variance", "block", "max"):
        assert balance([1.0] * 12, 4, by) == [3, 3, 3, 3]


def test_no_stage_is_empty_even_if_layers_cost_nothing() -> None:
    assert min(balance([0.0, 0.0, 0.0, 5.0, 0.0], 4, "block")) == 1
    assert min(balance([0.0] * 5, 4, "block")) == 1


def test_a_long_chain_of_blocks_ends() -> None:
    costs = [(7919 * i % 1009) / 1009 for i in range(500)]
    blocks = sums(costs, balance(costs, 64, "block"))
    assert max(blocks) - min(blocks) <= max(costs) * (1 + 1e-9)


@pytest.mark.parametrize(
    ("costs", "stages", "by", "says"),
    [
        ([1.0, 2.0], 3, "block", "use at most 2 stages"),
        ([1.0, 2.0], 0, "variance", "ask for at least 1"),
        ([1.0, -2.0], 1, "max", "0 or positive"),
        ([1.0, float("nan")], 1, "block", "0 or positive"),
        ([1.0, 2.0], 1, "luck", "by must be one of variance, block, max"),
    ],
)
def test_impossible_input(costs: list[float], stages: int, by: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        balance(costs, stages, by)  # type: ignore[arg-type]
