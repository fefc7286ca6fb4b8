"""Paired comparisons, against scipy's tests and Holm's own example."""

import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from experiments.staleness.comparison import Excess, holm

numbers = st.floats(-3, 3).map(lambda x: round(x, 3))


@given(st.lists(numbers, min_size=2, max_size=8).filter(lambda xs: np.std(xs) > 0.01), numbers)
def test_p_and_interval_are_those_of_a_t_test(differences: list[float], bound: float) -> None:
    found = Excess.of(pd.Series(differences))
    test = stats.ttest_1samp(differences, 0.0)
    low, high = test.confidence_interval(0.95)
    assert found.seeds == len(differences)
    assert [found.mean, *found.interval] == pytest.approx([np.mean(differences), low, high])
    assert found.p == pytest.approx(test.pvalue)
    less = stats.ttest_1samp(differences, bound, alternative="less").pvalue
    more = stats.ttest_1samp(differences, bound, alternative="greater").pvalue
    assert [found.p_above(bound), found.p_below(bound)] == pytest.approx([less, more])


def test_one_seed_says_nothing_and_equal_ones_say_all() -> None:
    one = Excess.of(pd.Series([0.3]))
    assert (one.interval, one.p) == ((-math.inf, math.inf), 1.0)
    assert one.p_above(9.0) == 1.0
    same = Excess.of(pd.Series([0.25, 0.25]))
    assert (same.interval, same.p) == ((0.25, 0.25), 0.0)
    assert (same.p_above(0.5), same.p_above(0.25), same.p_below(0.5)) == (0.0, 1.0, 1.0)
    assert Excess.of(pd.Series([0.0, 0.0])).p == 1.0


def test_holm_corrects_the_least_most() -> None:
    """Step by step: 4 x 0.005, 3 x 0.01, 2 x 0.03, and what is not less than one before it."""
    p = pd.Series([0.01, 0.04, 0.03, 0.005], index=["a", "b", "c", "d"])
    assert holm(p).to_dict() == pytest.approx({"a": 0.03, "b": 0.06, "c": 0.06, "d": 0.02})
    assert holm(pd.Series([0.9, 0.8])).to_list() == [1.0, 1.0]
