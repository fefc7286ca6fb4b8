"""Curves of losses, accuracies or speeds, one a method or run."""

import pandas as pd
import plotly.graph_objects as go

from pipekit.plots import style

PLOT_PX = 300


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
    missing = [column for column in (x, y, color) if column not in frame.columns]
    if missing:
        raise ValueError(f"the frame lacks the column {missing[0]!r}; it has {[*frame.columns]}")
    if frame.empty:
        raise ValueError("the frame has no rows to draw")
    figure = go.Figure(layout=style.layout(PLOT_PX, f"{title} ({label})"))
    longest = int(frame[color].astype(str).str.len().max())
    figure.update_layout(
        showlegend=True,
        legend={"orientation": "v", "x": 1, "xanchor": "left", "y": 1, "yref": "paper"},
        legend_yanchor="top",
        margin={"r": 64 + 8 * longest, "b": 52},
        height=PLOT_PX + style.MARGIN_PX["t"] + 52,
    )
    for position, (name, rows) in enumerate(frame.groupby(color, sort=False)):
        figure.add_scatter(
            x=rows[x].to_numpy(),
            y=rows[y].to_numpy(),
            name=str(name),
            mode="lines",
            line=style.series(position),
        )
    figure.update_xaxes(style.axis(x_title or x))
    figure.update_yaxes(style.axis(y_title or y))
    return figure
