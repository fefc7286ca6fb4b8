"""What the sweep says: contradictions first, and no more than the seeds decide."""

import math

import pandas as pd
import pytest

from experiments.staleness import claims, findings
from experiments.staleness.claims import AGREES, CONTRADICTS, UNDECIDED
from tests.experiments.staleness.trainings_table import parabola, trainings

ARMS = [("flush", 1), ("2bw", 2), ("pipedream", 4), ("no-stashing", 4), ("spectrain", 4)]
COSTS = {"flush": 0.0, "2bw": 0.0, "pipedream": 0.4, "no-stashing": 0.6, "spectrain": 0.1}


@pytest.fixture(scope="module")
def table() -> pd.DataFrame:
    """Seeds whose ease differs by 0.1, and whose luck by 0.01."""
    return trainings(parabola(COSTS), ARMS, seeds=5)


def test_contradictions_come_first_and_are_told_by_the_tests(table: pd.DataFrame) -> None:
    verdicts = claims.verdicts(table)
    told = verdicts.set_index("name")["verdict"].to_dict()
    assert told == {
        "pipedream": CONTRADICTS,  # 0.4 above
        "2bw": AGREES,  # within what another seed makes
        "stashing": AGREES,  # 0.2 above PipeDream
        "adamw": CONTRADICTS,  # no degradation
        "spectrain": told["spectrain"],
    }
    places = [[CONTRADICTS, UNDECIDED, AGREES].index(v) for v in verdicts["verdict"]]
    assert places == sorted(places)
    assert (verdicts["p_holm"] >= verdicts["p"]).all()
    assert (verdicts["effect"] == verdicts["excess"] / verdicts["margin"]).all()


def test_a_comparison_that_two_claims_ask_for_counts_once(table: pd.DataFrame) -> None:
    verdicts = claims.verdicts(table).set_index("name")
    assert verdicts["p_holm"]["2bw"] == verdicts["p_holm"]["adamw"]
    # 2bw's, pipedream's and spectrain's over flush, and no-stashing's over pipedream.
    assert verdicts["p_holm"].min() == pytest.approx(4 * verdicts["p"].min())


def test_few_and_scattered_seeds_decide_nothing() -> None:

    def lucky(method: str, rate: float, seed: int) -> float:
        best = parabola(COSTS, noise=0.0)(method, rate, seed)
        return best + (0.5 * math.sin(7 * seed + len(method)) if seed < 100 else 0.0)

    scattered = trainings(lucky, ARMS, seeds=3)
    assert set(claims.verdicts(scattered)["verdict"]) == {UNDECIDED}


@pytest.mark.parametrize(
    ("expected", "worse", "better", "alike", "unknown"),
    [
        (claims.HIGHER, AGREES, CONTRADICTS, CONTRADICTS, UNDECIDED),
        (claims.LOWER, CONTRADICTS, AGREES, CONTRADICTS, UNDECIDED),
        (claims.NOT_HIGHER, CONTRADICTS, AGREES, AGREES, UNDECIDED),
        (claims.SAME, CONTRADICTS, CONTRADICTS, AGREES, UNDECIDED),
    ],
)
def test_a_verdict_follows_from_what_is_told_and_what_is_negligible(
    expected: str, worse: str, better: str, alike: str, unknown: str
) -> None:
    claim = claims.PaperClaim("name", "paper", "text", "2bw", "flush", expected)
    assert claim.verdict(0.1, above=False, below=True) == worse
    assert claim.verdict(-0.1, above=True, below=False) == better
    assert claim.verdict(0.0, above=True, below=True) == alike
    assert claim.verdict(0.01, above=True, below=True) == alike, "told, and negligible"
    assert claim.verdict(0.0, above=False, below=False) == unknown


def test_mitigations_are_told_from_what_they_were_added_to(table: pd.DataFrame) -> None:
    (row,) = claims.mitigations(table).to_dict("records")
    assert (row["method"], row["of"], row["verdict"]) == (
        "spectrain",
        "no-stashing",
        claims.HELPS,
    )
    assert row["excess"] == pytest.approx(-0.5, abs=0.02)
    assert row["saved"] == pytest.approx(0.5 / 0.6, abs=0.05)


def test_sentences_are_as_many_of_any_trainings(table: pd.DataFrame) -> None:
    said = findings.sentences(table)
    assert said["number"].to_list() == [*range(1, len(claims.CLAIMS) + 4)]
    assert said["text"][0].startswith("“PipeDream's default semantics")
    assert "contradicted in 1 of 1 (+0.39" in said["text"][0]
    assert said["text"][0].endswith("; at own rate: images-small by adamw) (measured).")
    texts = said.set_index("name")["text"]
    assert texts["paci"].endswith("not trained.")
    assert texts["mitigations"].startswith("A mitigation helps in 1 of 1 (spectrain over no-stash")
    few = findings.sentences(table[table["method"].isin(["flush", "2bw"])])
    assert len(few) == len(said)
    assert not any("<" in text for text in said["text"]), "they go into comments' marks"


def test_settings_of_a_claim_are_told_apart(table: pd.DataFrame) -> None:
    deep = table[table["method"].isin(["pipedream", "no-stashing"])].assign(stages=8)
    text = findings.sentences(pd.concat([table, deep])).set_index("name")["text"]
    both = "images-small by adamw on 4 stages, images-small by adamw on 8 stages"
    assert f"met in 2 of 2 (+0.204 to +0.204 nats; at own rate: {both})" in text["stashing"]
    best = {"flush": 0.5, "2bw": 0.25}
    apart = trainings(
        lambda method, rate, seed: 1 + abs(rate - best[method]) + seed / 1000,
        ARMS[:2],
        (0.125, 0.25, 0.5, 1.0),
        seeds=5,
    )
    said = findings.sentences(apart).set_index("name")["text"]["2bw"]
    assert "contradicted in 1 of 2 (+0.250 nats; at flush's rate: images-small by adamw)" in said
    assert "met in 1 of 2 (+0.000 nats; at own rate: images-small by adamw)" in said


def test_trainings_of_another_length_stand_apart_and_say_what_they_are(table: pd.DataFrame) -> None:
    short = table.assign(proxy="gpt-large-200", batch_rows=16)
    both = pd.concat([table, short])
    assert set(claims.verdicts(both)["proxy"]) == {"images-small", "gpt-large-200"}
    assert "in 2 of 2" in findings.sentences(both)["text"][0]
    text = findings.sentences(both).set_index("name")["text"]["networks"]
    taken = f"{len(table)} trainings, {len(table) / 100:.2f} hours of CPU time, measured"
    assert text == (
        f"The networks: images-small (22,402 parameters, 200 updates, 6,400 images seen; {taken}); "
        f"gpt-large-200 (7,603,200 parameters, 200 updates, 409,600 bytes seen; {taken})."
    )
