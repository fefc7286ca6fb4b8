"""Curves of losses, accuracies or speeds, one a method or run."""

import pandas as pd
import plotly.graph_objects as go

from pipekit.plots import style
from pipekit.plots.charts.series import series


def curves(
    frame: pd.DataFrame,
    x: str,
    y: str,
    color: str,
    *,
    title: str,
    label: str,
    x_title: str | None = None,
    y_title: str | None = None,
) -> go.Figure:
    """Draw a line for each value of column ``color``, in the order in which they first appear.

    A series keeps its colour and dash in every figure whose frame names the series in that order.

    Args:
        frame: one row a point, in the order of ``x`` within each series.
        x: the column along the horizontal axis.
        y: the column along the vertical axis.
        color: the column that names the series, say "method".
        title: what is shown, without the label.
        label: what the numbers are: measured, emulated, simulated, exact or paper.
        x_title: with its unit, "epoch" or "time (s)"; by default the column's name.
        y_title: the same for the vertical axis.

    Raises:
        ValueError: the frame is empty or lacks a column.
    """
    return series(
        frame,
        x,
        y,
        color,
        lambda position: {"mode": "lines", "line": style.line(position)},
        title=title,
        label=label,
        x_title=x_title,
        y_title=y_title,
    )
