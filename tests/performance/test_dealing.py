"""Items are dealt to stages as frameworks do, in order and whole."""

from itertools import pairwise
from math import ceil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipekit.performance.dealing import beside_head, by_thresholds, filled
from pipekit.planning.balance import balance


@given(st.integers(1, 80), st.integers(1, 40))
def test_filled_stages_have_the_least_maximum_and_come_first(items: int, stages: int) -> None:
    found = filled(items, stages)
    assert len(found) == stages
    assert sum(found) == items
    assert found == sorted(found, reverse=True)
    assert found[0] == max(balance([1.0] * items, min(stages, items)))
    assert sum(1 for count in found if count) == ceil(items / found[0])  # no stage is half idle


def test_six_blocks_and_a_head_on_two_stages() -> None:
    # The sum is 8, so that stage 0 ends behind the item that takes it past 4: block 5.
    costs = [0.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.0, 2.0, 0.0]
    assert by_thresholds(costs, 2) == [0, 0, 0, 0, 0, 0, 1, 1, 1, 1]


def test_a_large_head_leaves_the_last_stage_without_an_item() -> None:
    assert by_thresholds([0.0, 1.0, 1.0, 4.0], 3) == [0, 0, 0, 0]
    assert by_thresholds([0.0, 1.0, 1.0, 4.0, 0.0], 3) == [0, 0, 0, 0, 1]


@given(st.lists(st.floats(0, 100), min_size=1, max_size=40), st.integers(1, 12))
def test_thresholds_deal_in_order_to_stages_that_there_are(costs: list[float], stages: int) -> None:
    found = by_thresholds(costs, stages)
    assert len(found) == len(costs)
    assert found[0] == 0
    assert all(0 <= b - a <= 1 for a, b in pairwise(found))
    assert found[-1] < stages


def test_layers_are_dealt_equally_or_beside_the_head() -> None:
    assert beside_head(80, 20, 0.5) == [4] * 20
    assert sorted(set(beside_head(126, 64, 0.7)[1:-1])) == [2]
    assert beside_head(126, 64, 0.7)[-1] == 1
    assert beside_head(126, 128, 0.7) == [0, *[1] * 126, 0]
    assert sum(beside_head(61, 16, 2.1)) == 61
    with pytest.raises(ValueError, match="3 layers are too few for 8 stages"):
        beside_head(3, 8, 0.5)


@given(st.integers(1, 130), st.integers(1, 40), st.floats(0, 4))
def test_all_layers_are_beside_head(layers: int, stages: int, head: float) -> None:
    if layers >= stages:
        found = beside_head(layers, stages, head)
        assert len(found) == stages
        assert sum(found) == layers
        assert min(found) >= 0
