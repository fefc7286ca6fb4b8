"""Charts of one panel with several series: curves, bands, points, intervals."""

from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from pipekit.plots import style

PLOT_PX, SQUARE_PX, ROW_PX, BOTTOM_PX = 300, 400, 34, 52
"""Of a panel, a square one, a row of intervals, and what is below."""
CHARACTER_PX = 8
BAND_OPACITY = 0.14
"""Several lie on one another, and all lines are seen through them."""
LEAST_TICKS = 3
PAD = 0.05
"""Free room beside what is outermost, as a share of the axis."""
SHARE = 0.6
"""Of a row of intervals, which its series divide among them."""
REACH = 1.0
"""Of the means' spread, on either side, the most that an interval may take; what reaches further
leaves the picture."""


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
    """Draw a trace for each value of column ``color``, as :func:`curves` does.

    ``look`` says how plotly draws the series at a position; ``plot_px`` is the panel's height.
    """
    style.require(frame, (x, y, color))
    figure = go.Figure(layout=style.layout(plot_px, f"{title} ({label})"))
    longest = int(frame[color].astype(str).str.len().max())
    beside = {"orientation": "v", "x": 1, "xanchor": "left", "y": 1, "yref": "paper"}
    figure.update_layout(
        showlegend=True,
        legend={**beside, "yanchor": "top"},
        margin={"r": 64 + CHARACTER_PX * longest, "b": BOTTOM_PX},
        height=plot_px + style.MARGIN_PX["t"] + BOTTOM_PX,
    )
    for position, (name, rows) in enumerate(frame.groupby(color, sort=False)):
        figure.add_scatter(
            x=rows[x].to_numpy(), y=rows[y].to_numpy(), name=str(name), **look(position)
        )
    figure.update_xaxes(style.axis(x_title or x))
    figure.update_yaxes(style.axis(y_title or y))
    return figure


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
    titles: Any = {"title": title, "label": label, "x_title": x_title, "y_title": y_title}
    return series(frame, x, y, color, _line, **titles)


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
    """Draw curves of repeated runs in bands; for the arguments see :func:`plots.curves`.

    A curve is the mean over the rows of equal ``x``, say each seed's loss after each epoch, in a
    band from the least to the greatest.
    """
    style.require(frame, (x, y, color))
    grouped = frame.groupby([color, x], sort=False)[y].agg(["mean", "min", "max"]).reset_index()
    titles: Any = {"title": title, "label": label, "x_title": x_title, "y_title": y_title or y}
    figure = curves(grouped, x, "mean", color, **titles)
    for position, (name, rows) in enumerate(grouped.groupby(color, sort=False)):
        # Who hides a curve, by its name in the legend, hides its band with it.
        figure.data[position].legendgroup = str(name)
        forth, back = rows, rows.iloc[::-1]
        figure.add_scatter(
            x=[*forth[x], *back[x]],
            y=[*forth["max"], *back["min"]],
            fill="toself",
            fillcolor=style.faint(style.line(position)["color"], BAND_OPACITY),
            mode="lines",
            line={"width": 0},
            legendgroup=str(name),
            showlegend=False,
            hoverinfo="skip",
        )
    return figure


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

    Args:
        frame: one row a point.
        x, y, color, title, label, x_title, y_title: as for :func:`curves`.
        diagonal: also draw y = x, in a square panel with equal ranges, to compare both columns.
        log: whether both axes are logarithmic.

    Raises:
        ValueError: the frame is empty or lacks a column, or a number has no logarithm.
    """
    titles: Any = {"title": title, "label": label, "x_title": x_title, "y_title": y_title}
    plot_px = SQUARE_PX if diagonal else PLOT_PX
    figure = series(frame, x, y, color, _marker, **titles, plot_px=plot_px)
    ranges = [_range(frame[[column]], log) for column in (x, y)]
    if diagonal:
        ranges = [_range(frame[[x, y]], log)] * 2
        _diagonal(figure, ranges[0], log)
    for axis, ends in zip((figure.layout.xaxis, figure.layout.yaxis), ranges, strict=True):
        axis.update(_log_axis(ends) if log else {}, range=ends)
    return figure


def _line(position: int) -> dict[str, Any]:
    return {"mode": "lines", "line": style.line(position)}


def _marker(position: int) -> dict[str, Any]:
    return {"mode": "markers", "marker": style.marker(position)}


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
    look = {"color": style.GREY, "dash": "dash", "width": 1.5}
    figure.add_scatter(
        x=line, y=line, name="y = x", mode="lines", line=look, hoverinfo="skip", legendrank=2000
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


def intervals(
    frame: pd.DataFrame,
    row: str,
    mean: str,
    low: str,
    high: str,
    color: str,
    *,
    title: str,
    label: str,
    x_title: str | None = None,
    known: Sequence[str] = (),
) -> go.Figure:
    """Draw a marker and a line from ``low`` to ``high`` for each row of the frame, beside zero.

    Args:
        frame: one row a mean.
        row: the column that names the figure's rows, in the order in which they first appear.
        mean: the column of the markers.
        low, high: the columns of the intervals' ends.
        color, title, label, x_title: as for :func:`curves`.
        known: the series of several figures, each of which is to look alike in all of them; by
            default those of the frame, in the order in which they first appear.

    Raises:
        ValueError: the frame is empty or lacks a column.
    """
    style.require(frame, (row, mean, low, high, color))
    names, kinds = (list(dict.fromkeys(frame[column])) for column in (row, color))
    of_row = {name: [k for k in kinds if k in {*own[color]}] for name, own in frame.groupby(row)}
    looks = [*known] or kinds
    apart = SHARE / len(kinds)
    placed = frame.assign(
        place=[
            names.index(name) + apart * (of_row[name].index(kind) - (len(of_row[name]) - 1) / 2)
            for name, kind in zip(frame[row], frame[color], strict=True)
        ]
    )
    titles: Any = {"title": title, "label": label, "x_title": x_title, "y_title": None}
    figure = series(
        placed, mean, "place", color, lambda k: _marker(looks.index(kinds[k])), **titles
    )
    quiet = {"mode": "lines", "showlegend": False, "hoverinfo": "skip"}
    for trace, (_, own) in zip(figure.data, placed.groupby(color, sort=False), strict=True):
        ends = zip(own[low], own[high], strict=True)
        figure.add_scatter(
            x=[*chain.from_iterable((start, end, None) for start, end in ends)],
            y=[*chain.from_iterable((place, place, None) for place in own["place"])],
            line={"color": trace.marker.color, "width": 1.5},
            **quiet,
        )
    rows = style.rows(names)
    zero = {"color": style.GREY, "width": 1}
    figure.add_scatter(x=[0, 0], y=rows["range"][::-1], line=zero, **quiet)
    least, most = min(0.0, frame[mean].min()), max(0.0, frame[mean].max())
    spread = (most - least) or 1.0
    start = max(least - REACH * spread, min(0.0, frame[low].min()))
    end = min(most + REACH * spread, max(0.0, frame[high].max()))
    figure.update_xaxes(range=[start - PAD * spread, end + PAD * spread])
    figure.update_yaxes(rows)
    height = ROW_PX * len(names) + style.MARGIN_PX["t"] + BOTTOM_PX
    longest = max(len(str(name)) for name in names)
    return figure.update_layout(height=height, margin={"l": 32 + CHARACTER_PX * longest})
