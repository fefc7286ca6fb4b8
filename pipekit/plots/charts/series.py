"""One panel in which a frame's series are told apart: what curves and points share."""

from collections.abc import Callable
from typing import Any

import pandas as pd
import plotly.graph_objects as go

from pipekit.plots import style
from pipekit.plots.frames import require

PLOT_PX = 300
BOTTOM_PX = 52


def series(
    frame: pd.DataFrame,
    x: str,
    y: str,
    color: str,
    look: Callable[[int], dict[str, Any]],
    *,
    title: str,
    label: str,
    x_title: str | None,
    y_title: str | None,
    plot_px: float = PLOT_PX,
) -> go.Figure:
    """Draw a trace for each value of column ``color``, in the order in which they first appear.

    Args:
        frame: one row a point.
        x: the column along the horizontal axis.
        y: the column along the vertical axis.
        color: the column that names the series.
        look: how plotly draws the series at a position.
        title: what is shown, without the label.
        label: what the numbers are.
        x_title: by default the column's name.
        y_title: the same for the vertical axis.
        plot_px: the panel's height.

    Raises:
        ValueError: the frame is empty or lacks a column.
    """
    require(frame, (x, y, color))
    figure = go.Figure(layout=style.layout(plot_px, f"{title} ({label})"))
    longest = int(frame[color].astype(str).str.len().max())
    figure.update_layout(
        showlegend=True,
        legend={
            "orientation": "v",
            **{"x": 1, "xanchor": "left"},
            **{"y": 1, "yref": "paper", "yanchor": "top"},
        },
        margin={"r": 64 + 8 * longest, "b": BOTTOM_PX},
        height=plot_px + style.MARGIN_PX["t"] + BOTTOM_PX,
    )
    for position, (name, rows) in enumerate(frame.groupby(color, sort=False)):
        figure.add_scatter(
            x=rows[x].to_numpy(), y=rows[y].to_numpy(), name=str(name), **look(position)
        )
    figure.update_xaxes(style.axis(x_title or x))
    figure.update_yaxes(style.axis(y_title or y))
    return figure
