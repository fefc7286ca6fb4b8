"""What the sweep says: contradictions first, and no more than the seeds decide."""

from io import StringIO
from pathlib import Path

import pandas as pd
import pytest
from pandas.testing import assert_frame_equal

from experiments.staleness import claims, comparison, paper_claims
from experiments.staleness.paper_claims import AGREES, CONTRADICTS, UNDECIDED
from tests.experiments.staleness.trainings_table import parabola, trainings

ARMS = [("flush", 1), ("2bw", 2), ("pipedream", 4), ("no-stashing", 4), ("spectrain", 4)]
COSTS = {"flush": 0.0, "2bw": 0.0, "pipedream": 0.4, "no-stashing": 0.6, "spectrain": 0.1}


@pytest.fixture(scope="module")
def table() -> pd.DataFrame:
    """Seeds whose ease differs by 0.1, and whose luck by 0.01."""
    return trainings(parabola(COSTS), ARMS, seeds=5)


@pytest.mark.parametrize(
    ("expected", "worse", "better", "alike", "unknown"),
    [
        (paper_claims.HIGHER, AGREES, CONTRADICTS, CONTRADICTS, UNDECIDED),
        (paper_claims.LOWER, CONTRADICTS, AGREES, CONTRADICTS, UNDECIDED),
        (paper_claims.NOT_HIGHER, CONTRADICTS, AGREES, AGREES, UNDECIDED),
        (paper_claims.SAME, CONTRADICTS, CONTRADICTS, AGREES, UNDECIDED),
        (paper_claims.NOT_LOWER, UNDECIDED, CONTRADICTS, UNDECIDED, UNDECIDED),
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


def test_what_diverged_has_no_size_in_words(table: pd.DataFrame) -> None:
    lost = (table["method"] == "no-stashing") & (table["seed"] < 100)
    said = claims.sentences(table.assign(validation_10=table["validation_10"].mask(lost)))
    (text,) = said.loc[said["name"] == "stashing", "text"]
    assert "(diverged: 5)" in text
    assert "nats" not in text


def test_the_committed_tables_are_those_of_the_committed_trainings(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1,696 real trainings: every comparison, verdict, mitigation and sentence of theirs."""
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


def test_untrained_claims_are_said_to_be_so(table: pd.DataFrame) -> None:
    said = claims.sentences(table)
    few = claims.sentences(table[table["method"].isin(["flush", "2bw"])])
    assert len(few) == len(said) == len(paper_claims.CLAIMS) + 3
    assert few.set_index("name")["text"]["paci"].endswith("not trained.")
    assert not any("<" in text for text in said["text"]), "they go into comments' marks"
