"""What the sweep says: paired comparisons against scipy's tests, and no more than seeds decide."""

import math
from io import StringIO
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from pandas.testing import assert_frame_equal
from scipy import stats

from experiments.staleness import claims, comparison
from experiments.staleness.claims import AGREES, CONTRADICTS, UNDECIDED
from experiments.staleness.comparison import excess, holm
from experiments.staleness_results import tables


@pytest.mark.parametrize(
    ("expected", "worse", "better", "alike", "unknown"),
    [
        ("higher", AGREES, CONTRADICTS, CONTRADICTS, UNDECIDED),
        ("lower", CONTRADICTS, AGREES, CONTRADICTS, UNDECIDED),
        ("not higher", CONTRADICTS, AGREES, AGREES, UNDECIDED),
        ("same", CONTRADICTS, CONTRADICTS, AGREES, UNDECIDED),
        ("not lower", AGREES, CONTRADICTS, AGREES, UNDECIDED),
    ],
)
def test_a_verdict_follows_from_what_is_told_and_what_is_negligible(
    expected: str, worse: str, better: str, alike: str, unknown: str
) -> None:
    claim = claims.PaperClaim("name", "paper", "text", "2bw", "flush", expected, "gpt sgd")
    assert claim.verdict(0.1, above=False, below=True) == worse
    assert claim.verdict(-0.1, above=True, below=False) == better
    assert claim.verdict(0.0, above=True, below=True) == alike
    assert claim.verdict(0.01, above=True, below=True) == alike, "told, and negligible"
    assert claim.verdict(0.0, above=False, below=False) == unknown


@pytest.mark.long
def test_the_committed_tables_are_those_of_the_committed_trainings(repository: Path) -> None:
    """Real trainings: every comparison, verdict and mitigation of theirs."""
    folder = repository / "results/reference/staleness"
    for name, table in tables(comparison.load(folder / "trainings.csv")).items():
        committed = pd.read_csv(folder / f"{name}.csv")
        now = pd.read_csv(StringIO(table.round(6).to_csv(index=False)))
        assert_frame_equal(committed[now.columns], now, rtol=1e-6, obj=name)


numbers = st.floats(-3, 3).map(lambda x: round(x, 3))


@given(st.lists(st.tuples(numbers, numbers), min_size=2, max_size=8))
def test_p_and_interval_are_those_of_a_t_test(losses: list[tuple[float, float]]) -> None:
    ours, theirs = map(pd.Series, zip(*losses, strict=True))
    differences = ours - theirs
    assume(np.std(differences) > 0.01)
    found, margin, test = excess(ours, theirs), theirs.std(), stats.ttest_1samp(differences, 0.0)
    expected = [len(losses), differences.mean(), *test.confidence_interval(0.95), margin]
    assert list(found.values())[:5] == pytest.approx(expected)
    assert found["p"] == pytest.approx(test.pvalue)
    less = stats.ttest_1samp(differences, margin, alternative="less").pvalue
    more = stats.ttest_1samp(differences, -margin, alternative="greater").pvalue
    assert [found["above"], found["below"]] == pytest.approx([less, more])


def test_one_seed_says_nothing_and_equal_ones_say_all() -> None:
    def told(ours: list[float], theirs: list[float]) -> list[float]:
        found = excess(pd.Series(ours), pd.Series(theirs))
        return [found[name] for name in ("low", "high", "p", "above", "below")]

    assert told([0.3], [0.0, 9.0]) == [-math.inf, math.inf, 1.0, 1.0, 1.0]
    assert told([0.25, 1.25], [0.0, 1.0]) == [0.25, 0.25, 0.0, 0.0, 0.0]
    assert told([0.25, 0.25], [0.0, 0.0]) == [0.25, 0.25, 0.0, 1.0, 0.0]
    assert told([0.0, 0.0], [0.0, 0.0])[2] == 1.0


def test_holm_corrects_the_least_most() -> None:
    """Step by step: 4 x 0.005, 3 x 0.01, 2 x 0.03, and what is not less than one before it."""
    p = pd.Series([0.01, 0.04, 0.03, 0.005], index=["a", "b", "c", "d"])
    assert holm(p).to_dict() == pytest.approx({"a": 0.03, "b": 0.06, "c": 0.06, "d": 0.02})
    assert holm(pd.Series([0.9, 0.8])).to_list() == [1.0, 1.0]
