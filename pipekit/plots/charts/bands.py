"""Curves of repeated runs: their mean, in a band from the least to the greatest."""

import pandas as pd
import plotly.graph_objects as go

from pipekit.plots import style
from pipekit.plots.charts.curves import curves
from pipekit.plots.frames import require

OPACITY = 0.14
"""Of a band: several lie on one another, and all lines are seen through them."""


def bands(
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
    """Draw, for each value of column ``color``, the mean over the rows of equal ``x``.

    Args:
        frame: a row for each run and point, say each seed's loss after each epoch.
        x: the column along the horizontal axis.
        y: the column along the vertical axis.
        color: the column that names the curves.
        title: what is shown, without the label.
        label: what the numbers are: measured, emulated, simulated, exact or paper.
        x_title: with its unit; by default the column's name.
        y_title: the same for the vertical axis.

    Raises:
        ValueError: the frame is empty or lacks a column.
    """
    require(frame, (x, y, color))
    grouped = frame.groupby([color, x], sort=False)[y].agg(["mean", "min", "max"]).reset_index()
    figure = curves(
        grouped,
        x,
        "mean",
        color,
        title=title,
        label=label,
        x_title=x_title,
        y_title=y_title or y,
    )
    for position, (name, rows) in enumerate(grouped.groupby(color, sort=False)):
        # Who hides a curve, by its name in the legend, hides its band with it.
        figure.data[position].legendgroup = str(name)
        forth, back = rows, rows.iloc[::-1]
        figure.add_scatter(
            x=[*forth[x], *back[x]],
            y=[*forth["max"], *back["min"]],
            fill="toself",
            fillcolor=style.faint(style.line(position)["color"], OPACITY),
            mode="lines",
            line={"width": 0},
            legendgroup=str(name),
            showlegend=False,
            hoverinfo="skip",
        )
    return figure
