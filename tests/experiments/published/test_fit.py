"""The rule finds the constants that made a set, judges by other rows, and intervals hold."""

import csv
import math
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.published import fit, table
from experiments.published.fit import covering, half_width, half_widths
from experiments.published.published_set import Row, RowPrediction
from experiments.published.table import choices, errors, with_intervals
from pipekit.performance.constants import NEW_DEVICE, Constants

TRUE = Constants(0.5, 3e-6)


@dataclass(frozen=True)
class Made(Row):
    name = "made"
    file = "made.csv"
    machine = "Made on made"
    efficiencies = (0.3, 0.5, 0.7)
    overheads = (1e-6, 3e-6, 5e-6)

    flops: float
    launches: float

    @property
    def device(self) -> str:
        return "even" if self.flops % 2 else "odd"

    @property
    def work(self) -> float:
        return self.flops

    @property
    def anomaly(self) -> str | None:
        return "made so" if self.row_id == "odd" else None

    def predict(self, constants: Constants) -> RowPrediction:
        return RowPrediction(seconds(self, constants), "made")


def seconds(row: Made, constants: Constants) -> float:
    return row.flops / constants.efficiency + row.launches * constants.overhead_s


@pytest.fixture
def outcome(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> fit.CrossValidation:
    """Of 60 rows that the true constants made, with noise of 5 %, and of one anomaly."""
    monkeypatch.setenv("PIPEKIT_MEASURED", str(tmp_path))
    monkeypatch.setattr(fit, "SETS", {"made": Made})
    rows = [Made(f"row{n}", 1.0 + n % 7, 1e5 * (n % 11)) for n in range(60)] + [Made("odd", 1, 0)]
    with (tmp_path / "made.csv").open("w", newline="") as lines:
        table = csv.writer(lines)
        table.writerow(["row_id", "flops", "launches", "step_s"])
        for number, row in enumerate(rows):
            noise = 9 if row.row_id == "odd" else math.exp(0.05 * math.sin(number))
            table.writerow([row.row_id, row.flops, row.launches, noise * seconds(row, TRUE)])
    return fit.outcome()


def test_the_rule_finds_what_made_the_rows_and_names_them(outcome: fit.CrossValidation) -> None:
    found = outcome.fits.machines["Made on made"]
    assert found.constants == TRUE
    assert len(found.fitted_on["made"]) == 60
    assert "odd" not in found.fitted_on["made"]


def test_the_table_says_how_far_predictions_are_off(outcome: fit.CrossValidation) -> None:
    (row,) = errors(with_intervals(outcome.judged)).to_dict("records")
    assert row["rows"] == 61
    assert row["anomalies"] == 1
    assert row["mean_without_anomalies"] == pytest.approx(0.05 * 2 / math.pi, rel=0.1)
    assert row["mean"] > row["mean_without_anomalies"]
    assert row["floor"] > 3 * row["mean"]
    assert 0.7 < row["coverage"] < 0.95
    assert 0.85 < row["rank"] < 1  # seven sizes: ties are ties


def test_a_row_is_never_predicted_by_constants_that_saw_it(
    outcome: fit.CrossValidation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A set of one fold has nobody to learn from: no row of it has a prediction."""
    monkeypatch.setattr(Row, "fold", 0)
    found = fit.outcome().judged
    assert found["predicted"].isna().all()
    assert "nothing was fitted for 'Made on made'" in found["out"][0].basis


def test_a_value_is_left_out_whole(
    outcome: fit.CrossValidation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table, "LEFT_OUT", ("flops", "launches", "unheard"))
    (row,) = table.on_values_left_out(outcome.rows).to_dict("records")
    assert (row["flops_values"], row["launches_values"]) == (7, 11)
    assert 0.02 < row["flops_mean"] < row["flops_worst"]
    assert 0.02 < row["launches_mean"] < row["launches_worst"]
    assert not any("unheard" in name for name in row)


def test_a_new_device_has_the_widest_interval_of_those_that_are_left_out(
    outcome: fit.CrossValidation,
) -> None:
    errors: dict[str, list[float]] = {"even": [], "odd": []}
    for one in outcome.rows:
        step_s = one.measured.step_s or math.nan
        errors[one.row.device].append(abs(math.log(step_s / seconds(one.row, TRUE))))
    widths = [sorted(own)[math.ceil(0.8 * (len(own) + 1)) - 1] for own in errors.values()]
    assert outcome.fits.half_widths["made"][NEW_DEVICE] == pytest.approx(max(widths))


@given(st.lists(st.floats(-1, 1), min_size=20, max_size=200))
def test_an_interval_holds_four_fifths_of_its_own_rows(residuals: list[float]) -> None:
    half = covering(map(abs, residuals))
    inside = sum(abs(each) <= half for each in residuals)
    assert 0.8 * len(residuals) <= inside
    assert sum(abs(each) < half for each in residuals) <= 0.8 * (len(residuals) + 1)


def test_a_class_of_few_rows_has_its_sets_interval() -> None:
    rows = [("set", "many", 0.01 * n) for n in range(30)] + [("set", "few", 1.0)]
    widths = half_widths(pd.DataFrame(rows, columns=["published", "kind", "distance"]))
    assert widths["set"]["many"] < widths["set"]["few"] < 1
    assert half_width(widths, "set", "unseen") == widths["set"]["few"]
    assert half_width(widths, "unseen", "all") == pytest.approx(sum(widths["set"].values()) / 2)


Chance = tuple[float, float | None, float]
"""Predicted, measured (None: the run failed), and the chance that it does not fail."""


def chosen(*rows: Chance) -> dict[str, float]:
    frame = pd.DataFrame(rows, columns=["predicted", "measured", "chance"])
    frame["measured"] = frame["measured"].astype(float)
    return choices(frame.assign(panel="a", fits=frame["measured"].notna()))


def test_perfect_predictions_choose_perfectly() -> None:
    rows = [(step, step, 0.9) for step in (1.0, 2.0, 3.0, 4.0)]
    assert chosen(*rows, (1.0, None, 0.1)) == {"panel_rank": 1, "best_of_3": 0, "auc": 1}


def test_reversed_predictions_choose_the_worst() -> None:
    found = chosen(*((6 - step, step, 0.1) for step in (1.0, 2.0, 3.0, 4.0, 5.0)), (9, None, 0.9))
    assert found["panel_rank"] == pytest.approx(-1)
    assert found["best_of_3"] == pytest.approx(2)  # 5, 4 and 3 are tried, 1 is there
    assert found["auc"] == 0


def test_a_run_that_is_not_expected_to_fit_is_not_tried() -> None:
    rows = [(step, step, 0.9) for step in (2.0, 3.0, 4.0)]
    assert chosen(*rows, (1.0, 1.0, 0.2))["best_of_3"] == pytest.approx(1)


def test_a_set_without_panels_has_no_choice() -> None:
    assert pd.Series(chosen()).isna().all()
