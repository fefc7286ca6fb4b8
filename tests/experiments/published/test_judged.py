"""Ranks, the best of three and failures are told apart, or not, of rows made up here."""

import pandas as pd
import pytest

from experiments.published.table import choices

Row = tuple[float, float | None, float]
"""Predicted, measured (None: the run failed), and the chance that it does not fail."""


def chosen(*rows: Row) -> dict[str, float]:
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
