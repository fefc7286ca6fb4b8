"""Writes what the sets' predictions are worth: ``python -m experiments.published.table``.

``errors.csv`` has a row a set and ``predictions.csv`` a row for each row of the given half, by
constants and intervals that were fitted on others; ``left_out.csv`` has the errors on models,
devices and numbers of GPUs that were left out whole; ``machines.csv`` has all constants.
None of them has a measured number.
"""

import math
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from experiments.published.choices import Judged, choices
from experiments.published.fit import FOLDS, CrossValidation, Known, outcome, write
from experiments.published.intervals import half_width, half_widths
from experiments.published.memory import memory
from pipekit import plots
from pipekit.host.provenance import provenance
from pipekit.performance.measurements import measurements

FOLDER = Path("results/reference/published")
LEFT_OUT = "model", "device", "gpus"
"""Columns of rows, or properties: of one value of which all rows are left out in turn."""
Numbers = NDArray[np.float64]


def judged(found: CrossValidation) -> list[Judged]:
    """Return all rows, each with an interval from the rows of the other folds."""
    widths = [half_widths(found.residuals(without=fold)) for fold in range(FOLDS)]
    return [
        Judged(one, out, half_width(widths[one.fold], one.each.name, one.each.kind(one.row)))
        for one, out in zip(found.rows, found.predictions, strict=True)
    ]


def errors(rows: Iterable[Judged]) -> pd.DataFrame:
    """Return a row a set: how far predictions are off, beside the floor and the publishers."""
    by_set: dict[str, list[Judged]] = defaultdict(list)
    for row in rows:
        by_set[_set(row.known)].append(row)
    return pd.DataFrame(
        [
            {
                "set": name,
                **_errors([row for row in own if row.known.measured.step_s]),
                **choices(own),
            }
            for name, own in by_set.items()
        ]
    )


def _set(one: Known) -> str:
    """Return the name of a row's set and of its part there."""
    return one.each.name + one.each.part(one.row)


def _errors(rows: list[Judged]) -> dict[str, float | None]:
    errors = np.array([row.error for row in rows])
    usual = np.array([row.known.each.anomaly(row.known.row) is None for row in rows])
    halves = np.array([row.half for row in rows])
    measured = np.array([row.known.measured.step_s for row in rows], dtype=float)
    memory = np.array([row.memory_error for row in rows])
    return {
        "rows": len(rows),
        "mean": _mean_size(errors),
        "median": float(np.nanmedian(np.abs(errors))),
        "bias": float(np.nanmedian(errors)),
        "rank": _rank_correlation(measured * (1 + errors), measured),
        "anomalies": int((~usual).sum()),
        "mean_without_anomalies": _mean_size(errors[usual]),
        "floor": _mean_size(_floor([row.known for row in rows], measured)),
        "simulator": _simulators(rows),
        "coverage": float(np.mean(np.abs(np.log1p(errors)) <= halves)),
        "interval": float(np.median(np.expm1(halves))),
        "memory": _mean_size(memory),
        "memory_without_anomalies": _mean_size(memory[usual]),
    }


def left_out(found: CrossValidation) -> pd.DataFrame:
    """Return how far predictions are off if all rows like one in a column are left out in turn.

    Returns:
        A row a set: of each column how many values it has, the mean error, and that of the worst.
    """
    frame = pd.DataFrame(
        (_set(one), column, getattr(one.row, column), abs(Judged(one, out, 0.0).error))
        for column in LEFT_OUT
        for one, out in found.left_out(column)
        if one.tried and hasattr(one.row, column)
    )
    frame.columns = pd.Index(["set", "column", "value", "error"])
    by_set = frame.groupby(["set", "column"], sort=False)
    by_value = frame.groupby(["set", "column", "value"], sort=False)["error"].mean()
    table = by_set.agg(values=("value", "nunique"), mean=("error", "mean")).assign(
        worst=by_value.groupby(level=[0, 1], sort=False).max()
    )
    wide = table.unstack("column")
    wide.columns = [f"{column}_{what}" for what, column in wide.columns]
    return wide.reset_index()


def _mean_size(errors: Numbers) -> float | None:
    known = np.abs(errors[~np.isnan(errors)])
    return float(known.mean()) if len(known) else None


def _rank_correlation(predicted: Numbers, measured: Numbers) -> float:
    """Return Spearman's coefficient."""
    frame = pd.DataFrame({"predicted": predicted, "measured": measured})
    return float(frame.corr("spearman").loc["predicted", "measured"])


def _floor(rows: list[Known], measured: Numbers) -> Numbers:
    """Return errors of the work times one constant, the median of the other folds' rows."""
    work = np.array([one.each.work(one.row) for one in rows])
    folds = np.array([one.fold for one in rows])
    rates = np.array([_median_of(measured / work, folds != fold) for fold in range(FOLDS)])
    return np.asarray(work * rates[folds] / measured - 1)


def _median_of(rates: Numbers, chosen: NDArray[np.bool_]) -> float:
    return float(np.median(rates[chosen])) if chosen.any() else math.nan


def _simulators(rows: list[Judged]) -> float | None:
    """Return the mean error of the publishers' own simulator: by row, or as they print it."""
    each = [
        one.measured.simulated_s / one.measured.step_s - 1
        for one, _, _ in rows
        if one.measured.simulated_s and one.measured.step_s
    ]
    return _mean_size(np.array(each)) if each else rows[0].known.each.published_error


def predictions(rows: Iterable[Judged]) -> pd.DataFrame:
    """Return what is predicted of each row, without what was measured."""
    return pd.DataFrame(
        {
            "set": one.each.name,
            "row_id": one.row.row_id,
            **out.columns(half),
            "anomaly": one.each.anomaly(one.row),
        }
        for one, out, half in rows
    )


def machines(found: CrossValidation) -> pd.DataFrame:
    """Return what was fitted, a row a machine."""
    return pd.DataFrame(
        {
            "machine": name,
            "efficiency": fit.constants.efficiency,
            "overhead_us": fit.constants.overhead_s * 1e6,
            "rows": sum(map(len, fit.fitted_on.values())),
        }
        for name, fit in found.fits.machines.items()
    )


def draw(rows: Iterable[Judged]) -> None:
    """Save a picture a set of predicted against measured seconds, and no table of its points."""
    by_set: dict[str, list[Judged]] = defaultdict(list)
    for row in rows:
        if row.prediction.step_s and row.known.measured.step_s:
            by_set[row.known.each.name].append(row)
    for name, own in by_set.items():
        frame = pd.DataFrame(
            {
                "class": one.each.kind(one.row),
                "measured": one.measured.step_s,
                "predicted": out.step_s,
            }
            for one, out, _ in own
        )
        figure = plots.points(
            frame.sort_values("class", kind="stable"),
            "measured",
            "predicted",
            "class",
            title=f"{name}, seconds of a step",
            label="published",
            diagonal=True,
            log=True,
        )
        plots.save(figure, FOLDER / name, frame)["csv"].unlink()


def main() -> None:
    """Fit, predict what was not fitted, and write both tables and the constants."""
    commit = provenance("simulated")["commit"]  # before files change
    found = outcome()
    write(found.fits)
    rows = judged(found)
    FOLDER.mkdir(parents=True, exist_ok=True)
    draw(rows)
    machines(found).to_csv(FOLDER / "machines.csv", index=False, float_format="%.4g")
    folder = measurements()
    if folder is not None:
        memory(folder).to_csv(FOLDER / "memory.csv", index=False, float_format="%.4g")
    left_out(found).to_csv(FOLDER / "left_out.csv", index=False, float_format="%.4g")
    table = errors(rows).assign(commit=commit)
    table.to_csv(FOLDER / "errors.csv", index=False, float_format="%.4g")
    predictions(rows).to_csv(FOLDER / "predictions.csv", index=False, float_format="%.5g")
    print(table.to_string(index=False, float_format="{:.3g}".format))


if __name__ == "__main__":
    main()
