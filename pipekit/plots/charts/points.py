"""Points of a comparison, say of predicted with measured times, one a setting."""

from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from pipekit.plots import style
from pipekit.plots.charts.series import PLOT_PX, series

LEAST_TICKS = 3
SQUARE_PX = 400
CHARACTER_PX = 8
PAD = 0.05
"""Free room beside the outermost points, as a share of the axis."""


def points(
    frame: pd.DataFrame,
    x: str,
    y: str,
    color: str,
    *,
    title: str,
    label: str,
    diagonal: bool = False,
    x_title: str | None = None,
    y_title: str | None = None,
    log: bool = False,
) -> go.Figure:
    """Draw a marker for each row; each value of column ``color`` has its own colour and symbol.

    A series keeps them in every figure whose frame names the series in that order.

    Args:
        frame: one row a point.
        x: the column along the horizontal axis.
        y: the column along the vertical axis.
        color: the column that names the series, say "method".
        title: what is shown, without the label.
        label: what the numbers are: measured, emulated, simulated, exact or paper.
        diagonal: also draw y = x, in a square panel with equal ranges, to compare both columns.
        x_title: with its unit, "predicted (s)"; by default the column's name.
        y_title: the same for the vertical axis.
        log: whether both axes are logarithmic.

    Raises:
        ValueError: the frame is empty or lacks a column, or a number has no logarithm.
    """
    figure = series(
        frame,
        x,
        y,
        color,
        lambda position: {"mode": "markers", "marker": style.marker(position)},
        title=title,
        label=label,
        x_title=x_title,
        y_title=y_title,
        plot_px=SQUARE_PX if diagonal else PLOT_PX,
    )
    ranges = [_range(frame[[column]], log) for column in (x, y)]
    if diagonal:
        ranges = [_range(frame[[x, y]], log)] * 2
        _diagonal(figure, ranges[0], log)
    for axis, ends in zip((figure.layout.xaxis, figure.layout.yaxis), ranges, strict=True):
        axis.update(_log_axis(ends) if log else {}, range=ends)
    return figure


def _range(columns: pd.DataFrame, log: bool) -> tuple[float, float]:
    """Return an axis' ends as plotly wants them: in powers of ten if it is logarithmic."""
    values = columns.to_numpy(dtype=float)
    if log:
        if (values <= 0).any():
            raise ValueError(
                f"a logarithmic axis needs positive numbers, not {np.nanmin(values):g} "
                f"in {' or '.join(map(repr, columns))}"
            )
        values = np.log10(values)
    low, high = float(np.nanmin(values)), float(np.nanmax(values))
    pad = PAD * ((high - low) or abs(high) or 1)
    return low - pad, high + pad


def _diagonal(figure: go.Figure, ends: tuple[float, float], log: bool) -> None:
    line = np.power(10.0, ends) if log else np.array(ends)
    figure.add_scatter(
        x=line,
        y=line,
        name="y = x",
        mode="lines",
        line={"color": style.GREY, "dash": "dash", "width": 1.5},
        hoverinfo="skip",
        legendrank=2000,
    )
    figure.data = (figure.data[-1], *figure.data[:-1])  # beneath the points
    layout = figure.layout
    title_px = CHARACTER_PX * len(layout.title.text)
    layout.margin.r = max(layout.margin.r, 108, title_px - SQUARE_PX)
    layout.width = layout.margin.l + SQUARE_PX + layout.margin.r


def _log_axis(ends: tuple[float, float]) -> dict[str, Any]:
    """Return an axis whose ticks name whole numbers; plotly's say "2" and "5" for 20 and 50."""
    from matplotlib.ticker import MaxNLocator  # here, since most figures need none of it

    decades = 10.0 ** np.arange(np.floor(ends[0]), np.ceil(ends[1]))
    low, high = np.power(10.0, ends)
    even = MaxNLocator(5).tick_values(low, high)
    for ticks in (decades, np.outer(decades, (1, 2, 5)).ravel(), even):
        ticks = ticks[(low <= ticks) & (ticks <= high)]
        if len(ticks) >= LEAST_TICKS:
            break
    return {"type": "log", "tickvals": ticks, "ticktext": [f"{tick:g}" for tick in ticks]}
