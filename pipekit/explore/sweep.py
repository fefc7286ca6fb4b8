"""A sweep's table as a heatmap: two columns are the axes, the mean of a third is in the cells."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from pipekit import plots
from pipekit.choices import require_choice
from pipekit.explore.page.controls import Maker, choice
from pipekit.explore.page.explorer import explore
from pipekit.explore.page.view import Plot, View
from pipekit.reading import read_table

EVERY = "all rows"
MOST_STEPS = 24  # different values of a column that can be an axis
BETTER = {"less": "idxmin", "more": "idxmax"}


def see(
    table: pd.DataFrame,
    label: str,
    value: str,
    across: str,
    down: str,
    only: str = EVERY,
    better: str = "less",
) -> View:
    """Return a cell for each pair of settings, with the mean over all rows of the table there.

    Args:
        table: a row a result, such as the CSV that a grid of experiments leaves.
        label: the kind of its numbers: measured, emulated, simulated or exact.
        value: the column of the numbers; ``across`` and ``down`` are the columns of the axes.
        only: the rows that count: :data:`EVERY`, or "column = value", several with commas.
        better: "less" or "more": which cell is framed.
    """
    if across == down:
        raise ValueError(f"both axes are {across!r}: choose another column for one of them")
    chosen = table
    for condition in () if only == EVERY else only.split(", "):
        column, _, wanted = condition.partition(" = ")
        require_choice("the column of a condition", column, [*table.columns])
        chosen = chosen[chosen[column].astype(str) == wanted]
    found = chosen[np.isfinite(chosen[value])]  # a training that diverged has no number
    if found.empty:
        raise ValueError(f"no row with {only} has a number in {value!r}")
    cells = found.groupby([across, down])[value].agg(["mean", "std", "count"]).reset_index()
    best = cells.loc[getattr(cells["mean"], BETTER[better])()]
    every = pd.MultiIndex.from_product([cells[across].unique(), cells[down].unique()])
    full = cells.set_index([across, down]).reindex(every.set_names([across, down])).reset_index()
    figure = plots.grid(
        full,
        across,
        down,
        "mean",
        best=(best[across], best[down]),
        title=f"{value}, mean of {only}",
        label=label,
        unit=value,
        missing="no run",
    )
    mixed = _mixed(found, across, down)
    text = (
        f"{better.capitalize()} is better: {best['mean']:.4g} at {across} {best[across]}, "
        f"{down} {best[down]} (mean of {best['count']:.0f} rows); {len(found)} of {len(table)} "
        f"rows are drawn. A cell is the mean over {', '.join(mixed) or 'nothing else'}."
    )
    return View(text=text, plots={"sweep": Plot(figure, full)}, table=cells, caption=only)


def _mixed(rows: pd.DataFrame, *axes: str) -> list[str]:
    """Return the settings that differ within cells; a column that the others give is a result."""
    mixed = [name for name in axes_of(rows) if name not in axes]
    for name in reversed([*mixed]):
        rest = [other for other in mixed if other != name]
        if len(rows[[*axes, *rest]].drop_duplicates()) == len(
            rows[[*axes, *mixed]].drop_duplicates()
        ):
            mixed = rest
    return mixed


def controls(table: pd.DataFrame, only: str = EVERY) -> dict[str, Maker]:
    """Return the controls of :func:`see`; ``only`` is one more choice of rows."""
    axes, values = columns(table)
    rows = [f"{column} = {each}" for column in axes for each in sorted(table[column].unique())]
    return {
        "value": choice("value", values),
        "across": choice("across", axes),
        "down": choice("down", axes),
        "only": choice("only", dict.fromkeys([only, EVERY, *rows])),
        "better": choice("better", BETTER),
    }


def columns(table: pd.DataFrame) -> tuple[list[str], list[str]]:
    """Return the columns that can be axes, and the columns of numbers."""
    axes = axes_of(table)
    values = [name for name in table.select_dtypes("number") if table[name].nunique() > 1]
    if len(axes) < 2 or not values:
        raise ValueError(
            f"a sweep's table needs two columns with 2 to {MOST_STEPS} different values, and one "
            f"of numbers; this one has {', '.join(table.columns)}"
        )
    return axes, values


def axes_of(table: pd.DataFrame) -> list[str]:
    """Return the columns of several values that are settings, and not results."""
    steps = table.nunique()
    whole = table.dropna(axis="columns").columns
    return [name for name in whole if 2 <= steps[name] <= MOST_STEPS]


def sweep(interactive: bool, results_dir: str, table: str | Path, label: str, **start: Any) -> None:
    """Display a CSV file's numbers of a kind; see :func:`pipekit.explore.page.explorer.explore`.

    It begins with the last column of numbers over the first two axes.
    """
    rows = read_table(table)
    axes, values = columns(rows)
    begun = {"value": values[-1], "across": axes[0], "down": axes[1]} | start
    shown = controls(rows, begun.get("only", EVERY))
    explore(partial(see, rows, label, **begun), interactive, results_dir, controls=shown)
