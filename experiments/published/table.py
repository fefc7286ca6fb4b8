"""Writes what the sets' predictions are worth: ``python -m experiments.published.table``.

``errors.csv`` has a row a set and ``predictions.csv`` a row for each row of the given half, by
constants and intervals that were fitted on others; ``left_out.csv`` has the errors on models,
devices and numbers of GPUs that were left out whole; ``machines.csv`` has all constants.
None of them has a measured number.
"""

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import typer
from scipy.stats import mannwhitneyu

from experiments.published.fit import Known, half_width, half_widths, left_out, outcome
from experiments.published.memory import memory
from experiments.published.published_set import FOLDS
from pipekit import plots
from pipekit.host.provenance import provenance
from pipekit.performance.constants import Fits, measurements

FOLDER = Path("results/reference/published")
LEFT_OUT = "model", "device", "gpus"  # of one value of which all rows are left out in turn
_FEWEST, _TRIED = 4, 3
"""Measured rows that a panel needs, and how many of the best predicted a person would try."""


def with_intervals(rows: pd.DataFrame) -> pd.DataFrame:
    """Return rows with ``half``: an interval's half width in logarithms, by rows of other folds."""
    widths = [half_widths(rows[rows["fold"] != fold]) for fold in range(FOLDS)]
    whose = zip(rows["fold"], rows["published"], rows["kind"], strict=True)
    return rows.assign(half=[half_width(widths[fold], name, kind) for fold, name, kind in whose])


def choices(rows: pd.DataFrame) -> dict[str, float]:
    """Return how well rows of panels, among which a person would choose, are told apart.

    ``panel_rank`` is Spearman's coefficient of predicted and measured, ``best_of_3`` by how much
    the best of the three runs that a person would try is slower than the panel's fastest, means
    over panels; ``auc`` is the probability that of two runs, one of which failed, that one was
    given less of a chance.
    """
    panels = [own for _, own in rows.groupby("panel") if own["measured"].count() >= _FEWEST]
    ranks = [own["predicted"].corr(own["measured"], "spearman") for own in panels]
    losses = []
    for panel in panels:
        feasible = panel[panel["chance"] > 0.5]
        tried = feasible if len(feasible) >= _TRIED else panel
        best = tried.nsmallest(_TRIED, "predicted")["measured"].min()
        losses.append(best / panel["measured"].min() - 1)
    well, failed = (rows.loc[rows["fits"] == fits, "chance"] for fits in (True, False))
    pairs = len(well) * len(failed)
    return {
        "panel_rank": pd.Series(ranks, dtype=float).mean(),
        "best_of_3": pd.Series(losses, dtype=float).mean(),
        "auc": mannwhitneyu(well, failed).statistic / pairs if pairs else math.nan,
    }


def errors(rows: pd.DataFrame) -> pd.DataFrame:
    return pd.DataFrame(
        {"set": name, **_errors(own[own["measured"].notna()]), **choices(own)}
        for name, own in rows.groupby("set", sort=False)
    )


def _errors(rows: pd.DataFrame) -> dict[str, float]:
    error = rows["predicted"] / rows["measured"] - 1
    memory = (rows["memory"] / rows["measured_memory"] - 1).abs()
    usual = rows["anomaly"].isna()
    # The floor is the work times one constant, the median of the other folds' rows.
    rates = rows["measured"] / rows["work"]
    folds = {fold: rates[rows["fold"] != fold].median() for fold in rows["fold"].unique()}
    floor = rows["work"] * rows["fold"].map(folds)
    simulated = (rows["simulated"] / rows["measured"] - 1).abs().mean()
    return {
        "rows": len(rows),
        "mean": error.abs().mean(),
        "median": error.abs().median(),
        "bias": error.median(),
        "rank": rows["predicted"].corr(rows["measured"], "spearman"),
        "anomalies": (~usual).sum(),
        "mean_without_anomalies": error[usual].abs().mean(),
        "floor": (floor / rows["measured"] - 1).abs().mean(),
        "simulator": rows["published_error"].iloc[0] if np.isnan(simulated) else simulated,
        "coverage": (np.log1p(error).abs() <= rows["half"]).mean(),
        "interval": np.expm1(rows["half"]).median(),
        "memory": memory.mean(),
        "memory_without_anomalies": memory[usual].mean(),
    }


def on_values_left_out(rows: Sequence[Known]) -> pd.DataFrame:
    """Return how far predictions are off if all rows like one in a column are left out in turn:
    for each set and column how many values it has, the mean error, and that of the worst value.
    """
    frame = pd.concat([left_out(rows, column).assign(column=column) for column in LEFT_OUT])
    frame = frame[frame["is_fitted"]]
    frame["error"] = (frame["predicted"] / frame["measured"] - 1).abs()
    by_set = frame.groupby(["set", "column"], sort=False)
    by_value = frame.groupby(["set", "column", "value"], sort=False)["error"].mean()
    table = by_set.agg(values=("value", "nunique"), mean=("error", "mean")).assign(
        worst=by_value.groupby(level=[0, 1], sort=False).max()
    )
    wide = table.unstack("column")
    wide.columns = [f"{column}_{what}" for what, column in wide.columns]
    return wide.reset_index()


def predictions(rows: pd.DataFrame) -> pd.DataFrame:
    """Return what is predicted of each row, without what was measured."""
    outs = (out.columns(half) for out, half in zip(rows["out"], rows["half"], strict=True))
    named = rows[["published", "row_id"]].rename(columns={"published": "set"})
    return named.join(pd.DataFrame(outs)).assign(anomaly=rows["anomaly"])


def machines(fits: Fits) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "machine": name,
            "efficiency": fit.constants.efficiency,
            "overhead_us": fit.constants.overhead_s * 1e6,
            "rows": sum(map(len, fit.fitted_on.values())),
        }
        for name, fit in fits.machines.items()
    )


def draw(rows: pd.DataFrame) -> None:
    """Save a picture a set of predicted against measured seconds, and no table of its points."""
    known = rows.dropna(subset=["predicted", "measured"]).rename(columns={"kind": "class"})
    for name, own in known.groupby("published", sort=False):
        frame = own[["class", "measured", "predicted"]].sort_values("class", kind="stable")
        columns, title = ("measured", "predicted", "class"), f"{name}, seconds of a step"
        figure = plots.points(
            frame, *columns, title=title, label="published", diagonal=True, log=True
        )
        plots.save(figure, FOLDER / str(name), frame)["csv"].unlink()


def main() -> None:
    """Fit, and write the tables and figures of results/reference/published."""
    commit = provenance("simulated")["commit"]  # before files change
    found = outcome()
    found.fits.write()
    rows = with_intervals(found.judged)
    FOLDER.mkdir(parents=True, exist_ok=True)
    draw(rows)
    table = errors(rows).assign(commit=commit)
    tables = {
        "machines": (machines(found.fits), "%.4g"),
        "left_out": (on_values_left_out(found.rows), "%.4g"),
        "errors": (table, "%.4g"),
        "predictions": (predictions(rows), "%.5g"),
    }
    if folder := measurements():
        tables["memory"] = memory(folder), "%.4g"
    for name, (each, digits) in tables.items():
        each.to_csv(FOLDER / f"{name}.csv", index=False, float_format=digits)
    print(table.to_string(index=False, float_format="{:.3g}".format))


if __name__ == "__main__":
    typer.run(main)
