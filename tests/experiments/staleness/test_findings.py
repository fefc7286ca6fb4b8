"""What the sweep says: contradictions first, and no more than the seeds decide."""

from io import StringIO
from pathlib import Path

import pandas as pd
import pytest
from pandas.testing import assert_frame_equal

from experiments.staleness import claims, comparison, paper_claims
from experiments.staleness.paper_claims import AGREES, CONTRADICTS, UNDECIDED


@pytest.mark.parametrize(
    ("expected", "worse", "better", "alike", "unknown"),
    [
        (paper_claims.HIGHER, AGREES, CONTRADICTS, CONTRADICTS, UNDECIDED),
        (paper_claims.LOWER, CONTRADICTS, AGREES, CONTRADICTS, UNDECIDED),
        (paper_claims.NOT_HIGHER, CONTRADICTS, AGREES, AGREES, UNDECIDED),
        (paper_claims.SAME, CONTRADICTS, CONTRADICTS, AGREES, UNDECIDED),
        (paper_claims.NOT_LOWER, AGREES, CONTRADICTS, AGREES, UNDECIDED),
    ],
)
def test_a_verdict_follows_from_what_is_told_and_what_is_negligible(
    expected: str, worse: str, better: str, alike: str, unknown: str
) -> None:
    claim = paper_claims.PaperClaim("name", "paper", "text", "2bw", "flush", expected, "gpt sgd")
    assert claim.verdict(0.1, above=False, below=True) == worse
    assert claim.verdict(-0.1, above=True, below=False) == better
    assert claim.verdict(0.0, above=True, below=True) == alike
    assert claim.verdict(0.01, above=True, below=True) == alike, "told, and negligible"
    assert claim.verdict(0.0, above=False, below=False) == unknown


@pytest.mark.long
def test_the_committed_tables_are_those_of_the_committed_trainings(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Real trainings: every comparison, verdict, mitigation and sentence of theirs."""
    folder = repository / "results/reference/staleness"
    trainings = comparison.load(folder / "trainings.csv")
    found = {
        "summary": comparison.summary(trainings),
        "claims": claims.verdicts(trainings),
        "mitigations": claims.mitigations(trainings),
    }
    # The sentences are of these two, which take seconds.
    monkeypatch.setattr(claims, "verdicts", lambda _: found["claims"])
    monkeypatch.setattr(claims, "mitigations", lambda _: found["mitigations"])
    found["findings"] = claims.sentences(trainings)
    for name, table in found.items():
        committed = pd.read_csv(folder / f"{name}.csv")
        now = pd.read_csv(StringIO(table.round(6).to_csv(index=False)))
        assert_frame_equal(committed[now.columns], now, rtol=1e-6, obj=name)
