"""Comparisons: computed from the table alone, seed by seed, at rates that were tuned."""

import math

import numpy as np
import pandas as pd
import pytest

from pipekit.papers.staleness import comparison, findings
from pipekit.papers.staleness.comparison import OWN, SYNCS
from pipekit.papers.staleness.sweep import FINAL, chosen
from tests.papers.staleness.trainings_table import parabola, trainings

ARMS = [("flush", 1), ("2bw", 2), ("pipedream", 4), ("no-stashing", 4), ("spectrain", 4)]
COSTS = {"flush": 0.0, "2bw": 0.0, "pipedream": 0.4, "no-stashing": 0.6, "spectrain": 0.1}


@pytest.fixture(scope="module")
def table() -> pd.DataFrame:
    return trainings(parabola(COSTS), ARMS)


def at_own_rates(table: pd.DataFrame) -> pd.DataFrame:
    summary = comparison.summary(table)
    return summary[summary["at"] == OWN].set_index("method")


def test_the_least_mean_over_the_tuning_seeds_is_chosen(table: pd.DataFrame) -> None:
    assert set(chosen(table).values()) == {0.5}
    judging_only = table.assign(**{FINAL: table[FINAL].where(table["seed"] >= 100, -table["rate"])})
    assert chosen(judging_only) == chosen(table), "judging seeds have no say"


def test_a_rate_at_which_a_seed_diverges_is_not_chosen(table: pd.DataFrame) -> None:
    lost = (table["method"] == "2bw") & (table["rate"] == 0.5) & (table["seed"] == 101)
    rates = chosen(table.assign(**{FINAL: table[FINAL].mask(lost)}))
    assert rates["images-small", "2bw", 2, "adamw"] in (0.25, 1.0)
    assert rates["images-small", "flush", 1, "adamw"] == 0.5


def test_costs_are_differences_seed_by_seed(table: pd.DataFrame) -> None:
    own = at_own_rates(table)
    for method, cost in COSTS.items():
        assert own["cost"][method] == pytest.approx(cost, abs=0.02)
        # The ease of the seeds, ten times as large as the luck, is in the std and not in the error.
        assert own["error"][method] < 0.02 < own["std"][method]
    assert own["p"]["pipedream"] < 0.01 < 0.05 < own["p"]["2bw"]
    assert own["p"]["flush"] == 1


def test_an_arm_at_the_border_of_its_rates_is_not_judged_at_its_own() -> None:
    rising = trainings(lambda method, rate, seed: rate + seed / 100, ARMS[:2])
    rows = comparison.judged(rising)
    assert set(rows["at"]) == {SYNCS}


def test_an_arm_with_too_few_seeds_is_left_out(table: pd.DataFrame) -> None:
    short = table[~((table["method"] == "pipedream") & (table["seed"] == 2))]
    assert "pipedream" not in set(comparison.judged(short)["method"])


def test_a_judging_seed_that_diverges_costs_infinitely_much(table: pd.DataFrame) -> None:
    lost = (table["method"] == "pipedream") & (table["seed"] == 1)
    row = at_own_rates(table.assign(**{FINAL: table[FINAL].mask(lost)})).loc["pipedream"]
    assert (row["cost"], row["p"]) == (math.inf, 0)


def test_methods_of_equal_depth_are_held_against_one_another(table: pd.DataFrame) -> None:
    (row,) = comparison.against(table, "no-stashing", "pipedream").to_dict("records")
    assert row["excess"] == pytest.approx(0.2, abs=0.02)
    assert comparison.against(table, "2bw", "pipedream").empty


def test_what_a_method_saves_is_a_share_of_pipedreams_cost(table: pd.DataFrame) -> None:
    saved = comparison.recovered(comparison.summary(table)).set_index("method")["saved"]
    assert saved["spectrain"] == pytest.approx(0.75, abs=0.05)
    assert saved["no-stashing"] == pytest.approx(-0.5, abs=0.05)
    assert "pipedream" not in saved


def test_equal_rates_are_compared_on_the_tuning_seeds(table: pd.DataFrame) -> None:
    rows = comparison.by_rate(table, "pipedream")
    assert rows["rate"].to_list() == [0.25, 0.5, 1.0]
    assert rows["best"].to_list() == [False, True, False]
    assert rows["excess"].to_list() == pytest.approx([0.4] * 3, abs=0.02)


def test_a_course_crosses_a_target_on_a_straight_line(table: pd.DataFrame) -> None:
    course = comparison.courses(table)
    assert sorted(course["updates"].unique()) == [20 * i for i in range(11)]
    assert (course["samples"] == 32 * course["updates"]).all()
    means = course[course["updates"] == 200].groupby("arm")["loss"].mean()
    reached = comparison.reached(course, 1.7)
    for arm, end in means.items():
        assert reached[arm] == pytest.approx(200 * 0.3 / (2 - end))
    assert np.isinf(comparison.reached(course, 0.1)).all()


def test_contradictions_come_first_and_are_told_by_the_test(table: pd.DataFrame) -> None:
    verdicts = findings.verdicts(table)
    told = verdicts.groupby("claim")["verdict"].agg(set)
    similar, between, critical, _ = (claim.text for claim in findings.CLAIMS)
    assert told[between] == {findings.CONTRADICTS}
    assert told[similar] == told[critical] == {findings.AGREES}
    assert verdicts["verdict"].is_monotonic_decreasing
    first, *others = findings.sentences(table)
    assert first.startswith("2 of 2 comparisons contradict “PipeDream's semantics lie between")
    assert not any("contradict" in sentence for sentence in others)


@pytest.mark.parametrize(
    ("expected", "worse", "better", "none"),
    [
        (findings.HIGHER, findings.AGREES, findings.CONTRADICTS, findings.CONTRADICTS),
        (findings.NOT_HIGHER, findings.CONTRADICTS, findings.AGREES, findings.AGREES),
        (findings.SAME, findings.CONTRADICTS, findings.CONTRADICTS, findings.AGREES),
    ],
)
def test_a_verdict_follows_from_sign_and_p(
    expected: str, worse: str, better: str, none: str
) -> None:
    claim = findings.PaperClaim("paper", "text", "2bw", "flush", expected)
    assert (claim.verdict(0.1, 0.01), claim.verdict(-0.1, 0.01)) == (worse, better)
    assert claim.verdict(0.1, 0.5) == claim.verdict(-0.1, 0.5) == none


def test_counts_are_of_trainings_hours_and_complete_arms(table: pd.DataFrame) -> None:
    assert findings.counts(table) == (
        "75 trainings, 0.75 hours of CPU time (measured), 5 complete arms "
        "(images-small: 200 updates of 32 samples)"
    )
