"""Ranks, the best of three and failures are told apart, or not, of rows made up here."""

from dataclasses import dataclass
from functools import partial

import numpy as np
import pytest

from experiments.published.choices import Judged, choices
from experiments.published.fit import Known
from experiments.published.published_set import PublishedSet, RowMeasured, RowPrediction
from pipekit.performance.constants import Constants


@dataclass(frozen=True)
class Made:
    row_id: str
    panel: str


def unused(row: Made, constants: Constants) -> RowPrediction:
    raise NotImplementedError


made = partial(
    PublishedSet,
    name="made",
    file="made.csv",
    row=Made,
    machine=lambda row: "none",
    predict=unused,
    measured=lambda values: RowMeasured(None),
    work=lambda row: 1.0,
)


def judged(predicted: float, measured: float | None, chance: float) -> Judged:
    known = Known(
        made(panel=lambda row: row.panel),
        Made("0", "a"),
        RowMeasured(measured, fits=measured is not None),
        0,
        np.empty(0),
    )
    return Judged(known, RowPrediction(predicted, "made", fits=chance), 0.1)


def test_perfect_predictions_choose_perfectly() -> None:
    rows = [judged(step, step, 0.9) for step in (1.0, 2.0, 3.0, 4.0)] + [judged(1.0, None, 0.1)]
    assert choices(rows) == {"panel_rank": 1, "best_of_3": 0, "auc": 1}


def test_reversed_predictions_choose_the_worst() -> None:
    rows = [judged(6 - step, step, 0.1) for step in (1.0, 2.0, 3.0, 4.0, 5.0)]
    rows.append(judged(9.0, None, 0.9))
    found = choices(rows)
    assert found["panel_rank"] == pytest.approx(-1)
    assert found["best_of_3"] == pytest.approx(2)  # 5, 4 and 3 are tried, 1 is there
    assert found["auc"] == 0


def test_a_run_that_is_not_expected_to_fit_is_not_tried() -> None:
    rows = [judged(step, step, 0.9) for step in (2.0, 3.0, 4.0)] + [judged(1.0, 1.0, 0.2)]
    assert choices(rows)["best_of_3"] == pytest.approx(1)


def test_a_set_without_panels_has_no_choice() -> None:
    assert choices([]) == {"panel_rank": None, "best_of_3": None, "auc": None}
