"""Whether predictions choose well: ranks of configurations, the best few, and which runs fail."""

import math
from collections.abc import Iterable
from typing import NamedTuple

import pandas as pd
from scipy.stats import mannwhitneyu

from experiments.published.fit import Known
from experiments.published.published_set import RowPrediction

_FEWEST, _TRIED = 4, 3
"""Measured rows that a panel needs, and how many of the best predicted a person would try."""


class Judged(NamedTuple):
    """A row with its prediction, and the half width of its interval, all from other folds."""

    known: Known
    prediction: RowPrediction
    half: float

    @property
    def error(self) -> float:
        """Return predicted / measured - 1."""
        return (self.prediction.step_s or math.nan) / (self.known.measured.step_s or math.nan) - 1

    @property
    def memory_error(self) -> float:
        """Return likewise of the peak of memory; NaN if it is not measured or not predicted."""
        measured = self.known.measured.memory_bytes or math.nan
        return (self.prediction.memory_bytes or math.nan) / measured - 1


def choices(rows: Iterable[Judged]) -> dict[str, float | None]:
    """Return how well rows of panels, among which a person would choose, are told apart.

    Returns:
        ``panel_rank``: the mean over panels of Spearman's coefficient of predicted and measured;
        ``best_of_3``: by how much the best of three runs, those that are predicted to fit and to be
        the fastest, is slower than the panel's fastest, a mean; ``auc``: the probability that of
        two runs, one of which failed, that one was given less of a chance (None: none failed).
    """
    frame = pd.DataFrame(
        {
            "panel": one.each.panel(one.row),
            "predicted": out.step_s,
            "measured": one.measured.step_s,
            "chance": out.fits,
            "fits": one.measured.fits,
        }
        for one, out, _ in rows
        if one.each.panel
    )
    if frame.empty:
        return {"panel_rank": None, "best_of_3": None, "auc": None}
    panels = [panel for _, panel in frame.groupby("panel") if panel["measured"].count() >= _FEWEST]
    ranks = [panel["predicted"].corr(panel["measured"], "spearman") for panel in panels]
    return {
        "panel_rank": float(pd.Series(ranks).mean()),
        "best_of_3": float(pd.Series([_loss(panel) for panel in panels]).mean()),
        "auc": _auc(frame),
    }


def _loss(panel: pd.DataFrame) -> float:
    feasible = panel[panel["chance"] > 0.5]
    tried = feasible if len(feasible) >= _TRIED else panel
    best = tried.nsmallest(_TRIED, "predicted")["measured"].min()
    return float(best / panel["measured"].min() - 1)


def _auc(frame: pd.DataFrame) -> float | None:
    well, failed = (frame.loc[frame["fits"] == fits, "chance"] for fits in (True, False))
    if failed.empty or well.empty:
        return None
    return float(mannwhitneyu(well, failed).statistic / (len(well) * len(failed)))
