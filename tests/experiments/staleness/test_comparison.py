"""Comparisons: computed from the table alone, seed by seed, at rates that were tuned."""

import pandas as pd
import pytest

from experiments.staleness import comparison
from experiments.staleness.comparison import OWN, SYNCS
from experiments.staleness.sweep import FINAL, VALIDATIONS, chosen
from tests.experiments.staleness.trainings_table import parabola, trainings

ARMS = [("flush", 1), ("2bw", 2), ("pipedream", 4), ("no-stashing", 4), ("spectrain", 4)]
COSTS = {"flush": 0.0, "2bw": 0.0, "pipedream": 0.4, "no-stashing": 0.6, "spectrain": 0.1}


@pytest.fixture(scope="module")
def table() -> pd.DataFrame:
    return trainings(parabola(COSTS), ARMS, seeds=5)


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


def test_an_arm_at_the_border_of_its_rates_is_not_judged_at_its_own() -> None:
    rising = trainings(lambda method, rate, seed: rate + seed / 100, ARMS[:2])
    rows = comparison.judged(rising)
    assert set(rows["at"]) == {SYNCS}


def test_a_judging_seed_that_diverges_has_learnt_nothing(table: pd.DataFrame) -> None:
    lost = (table["method"] == "pipedream") & (table["seed"] == 1)
    row = at_own_rates(table.assign(**{FINAL: table[FINAL].mask(lost)})).loc["pipedream"]
    untrained = table.loc[lost & (table["rate"] == 0.5), VALIDATIONS[0]].item()
    whole = at_own_rates(table).loc["pipedream"]
    was = table.loc[lost & (table["rate"] == 0.5), FINAL].item()
    assert row["diverged"] == 1
    assert row["loss"] == pytest.approx(whole["loss"] + (untrained - was) / 5)


def test_both_at_the_rate_of_no_delay_only_where_that_is_another(table: pd.DataFrame) -> None:
    assert comparison.against(comparison.judged(table), "pipedream", "flush", at=SYNCS) == []
    best = {"flush": 0.5, "2bw": 0.25}
    apart = trainings(
        lambda method, rate, seed: 1 + abs(rate - best[method]), ARMS[:2], (0.125, 0.25, 0.5, 1.0)
    )
    (pair,) = comparison.against(comparison.judged(apart), "2bw", "flush", at=SYNCS)
    assert pair.found.mean == pytest.approx(0.25)


def test_at_the_rate_of_no_delay_too_where_its_own_is_not_found_yet() -> None:
    best = {"flush": 0.5, "2bw": 0.0}
    table = trainings(lambda m, rate, seed: seed / 9 + abs(rate - best[m]), ARMS[:2])
    assert comparison.against(comparison.judged(table), "2bw", "flush") == [], (
        "the least rate was the best"
    )
    (pair,) = comparison.against(comparison.judged(table), "2bw", "flush", at=SYNCS)
    assert pair.found.mean == pytest.approx(0.5)
