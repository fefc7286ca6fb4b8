"""Cross-validated predictions beside what was measured: a frame, and how well its rows choose."""

import math

import pandas as pd
from scipy.stats import mannwhitneyu

from experiments.published.fit import FOLDS, CrossValidation
from experiments.published.intervals import half_width, half_widths

_FEWEST, _TRIED = 4, 3
"""Measured rows that a panel needs, and how many of the best predicted a person would try."""


def judged(found: CrossValidation) -> pd.DataFrame:
    """Return all rows, each with its prediction and an interval from the rows of other folds.

    Returns:
        ``published`` and ``set`` (that, with the part which is judged alone), ``row_id``, ``fold``,
        ``kind``, ``panel``, ``anomaly``; ``predicted``, ``measured`` and the publishers'
        ``simulated`` seconds; ``half``, the interval's half width in logarithms; ``memory`` and
        ``measured_memory`` in bytes; ``chance`` and ``fits``; ``work`` of the naive floor.
    """
    widths = [half_widths(found.residuals(without=fold)) for fold in range(FOLDS)]
    frame = pd.DataFrame(
        {
            "published": each.name,
            "set": one.judged_in,
            "row_id": row.row_id,
            "fold": one.fold,
            "kind": each.kind(row),
            "panel": each.panel(row) if each.panel else None,
            "anomaly": each.anomaly(row),
            "predicted": out.step_s,
            "measured": one.measured.step_s,
            "simulated": one.measured.simulated_s,
            "half": half_width(widths[one.fold], each.name, each.kind(row)),
            "memory": out.memory_bytes,
            "measured_memory": one.measured.memory_bytes,
            "chance": out.fits,
            "fits": one.measured.fits,
            "work": each.work(row),
        }
        for one, out in zip(found.rows, found.predictions, strict=True)
        for each, row in [(one.each, one.row)]
    )
    return frame.astype(dict.fromkeys(_NUMBERS, float))


_NUMBERS = "predicted", "measured", "simulated", "memory", "measured_memory", "chance"


def choices(rows: pd.DataFrame) -> dict[str, float]:
    """Return how well rows of panels, among which a person would choose, are told apart.

    Returns:
        ``panel_rank``: the mean over panels of Spearman's coefficient of predicted and measured;
        ``best_of_3``: by how much the best of three runs, those that are predicted to fit and to be
        the fastest, is slower than the panel's fastest, a mean; ``auc``: the probability that of
        two runs, one of which failed, that one was given less of a chance.  NaN: there are none.
    """
    panels = [own for _, own in rows.groupby("panel") if own["measured"].count() >= _FEWEST]
    ranks = [own["predicted"].corr(own["measured"], "spearman") for own in panels]
    return {
        "panel_rank": pd.Series(ranks, dtype=float).mean(),
        "best_of_3": pd.Series([_loss(own) for own in panels], dtype=float).mean(),
        "auc": _auc(rows),
    }


def _loss(panel: pd.DataFrame) -> float:
    feasible = panel[panel["chance"] > 0.5]
    tried = feasible if len(feasible) >= _TRIED else panel
    best = tried.nsmallest(_TRIED, "predicted")["measured"].min()
    return float(best / panel["measured"].min() - 1)


def _auc(rows: pd.DataFrame) -> float:
    well, failed = (rows.loc[rows["fits"] == fits, "chance"] for fits in (True, False))
    if failed.empty or well.empty:
        return math.nan
    return float(mannwhitneyu(well, failed).statistic / (len(well) * len(failed)))
