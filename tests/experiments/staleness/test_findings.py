"""What the sweep says: contradictions first, and no more than the seeds decide."""

from io import StringIO
from pathlib import Path

import pandas as pd
import pytest
from pandas.testing import assert_frame_equal

from experiments.staleness import claims, comparison
from experiments.staleness.claims import AGREES, CONTRADICTS, UNDECIDED
from experiments.staleness_results import tables


@pytest.mark.parametrize(
    ("expected", "worse", "better", "alike", "unknown"),
    [
        (claims.HIGHER, AGREES, CONTRADICTS, CONTRADICTS, UNDECIDED),
        (claims.LOWER, CONTRADICTS, AGREES, CONTRADICTS, UNDECIDED),
        (claims.NOT_HIGHER, CONTRADICTS, AGREES, AGREES, UNDECIDED),
        (claims.SAME, CONTRADICTS, CONTRADICTS, AGREES, UNDECIDED),
        (claims.NOT_LOWER, AGREES, CONTRADICTS, AGREES, UNDECIDED),
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
