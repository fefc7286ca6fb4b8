"""A row of panels for each worker, one under another, above one time axis."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from pipekit.plots import style

GAP_PX = 12
"""Between two rows."""
GAP = 0.07
"""Between two columns, as a part of the width."""
NAME_PX, TICKS_PX = 68, 40
"""Of the left margin, for "worker 15", and for the numbers along an axis of bytes."""


def worker_panels(
    workers: Sequence[int],
    row_px: float,
    x_axis: dict[str, Any],
    y_axes: Sequence[dict[str, Any]],
    *,
    title: str,
    ticks_px: int = 28,
) -> dict[str, Any]:
    """Return the plotly layout of empty panels with the workers' names beside them.

    Args:
        workers: from the top.
        row_px: how high a panel is.
        x_axis: of all panels; its title stands below the last ones.
        y_axes: one a column.
        title: of the figure.
        ticks_px: how wide the numbers along the vertical axes are.
    """
    # All at once, as plain dicts: plotly checks every later change anew, which takes longer than
    # all the rest, and explorers draw while a slider moves.
    columns, rows = len(y_axes), len(workers)
    plot_px = rows * (row_px + GAP_PX) - GAP_PX
    width = (1 - GAP * (columns - 1)) / columns
    layout = style.layout(plot_px, title)
    layout["margin"] = {**layout["margin"], "l": NAME_PX + ticks_px}
    layout["annotations"] = []
    for row, worker in enumerate(workers):
        top = 1 - row * (row_px + GAP_PX) / plot_px
        domain = [max(0.0, top - row_px / plot_px), top]
        for column, y_axis in enumerate(y_axes):
            x, y = panel(row, column, columns).values()
            left = column * (width + GAP)
            below = {} if row == rows - 1 else {"title": None, "showticklabels": False}
            above = {"matches": panel(0, column, columns)["xaxis"]} if row else {}
            ends = {"domain": [left, left + width], "anchor": y}
            layout[f"xaxis{x[1:]}"] = {**x_axis, **ends, **below, **above}
            layout[f"yaxis{y[1:]}"] = {**y_axis, "domain": domain, "anchor": x}
        beside = write_beside(domain, f"worker {worker}", x=0, xanchor="right", xshift=-ticks_px)
        layout["annotations"].append(beside)
    return layout


def panel(row: int, column: int = 0, columns: int = 1) -> dict[str, str]:
    """Return the axes of the panel in a row and a column, as a plotly trace names them."""
    number = row * columns + column
    suffix = str(number + 1) if number else ""
    return {"xaxis": f"x{suffix}", "yaxis": f"y{suffix}"}


def write_beside(domain: Sequence[float], text: str, **x: Any) -> dict[str, Any]:
    """Return a plotly text at half the height of panels, at ``x`` of their width."""
    place = {"xref": "paper", "y": sum(domain) / 2, "yref": "paper", "yanchor": "middle"}
    return {"text": text, "showarrow": False, **x, **place}


def steps(times: pd.Series, values: pd.Series, end: float) -> dict[str, np.ndarray]:
    """Return the x and y of what holds from each time to the next, and the last to the end."""
    return {"x": np.append(times, end), "y": np.append(values, values.iloc[-1])}
