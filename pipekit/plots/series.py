"""Charts of one panel with several series: curves, bands, points, means with intervals."""

from collections.abc import Callable, Sequence
from typing import Any, NotRequired, TypedDict, Unpack

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from pipekit.plots import style

PLOT_PX, SQUARE_PX, BOTTOM_PX = 300, 400, 52  # of a panel, a square one, and what is below
CHARACTER_PX = 8
BAND_OPACITY = 0.14  # several lie on one another, and all lines are seen through them
LEAST_TICKS = 3
PAD = 0.05  # free room beside what is outermost, as a share of the axis
ROW_PX = 34  # of a row of intervals
SHARE = 0.6  # of a row of intervals, which its series divide among them
REACH = 1.0
"""Of the means' spread, on either side, the most that an interval may take; what reaches further
leaves the picture."""


class Words(TypedDict):
    """The texts of a chart."""

    title: str  # what is shown, without the label
    label: str  # what the numbers are: measured, emulated, simulated, exact or paper
    x_title: NotRequired[str | None]  # with its unit, "time (s)"; by default the column's name
    y_title: NotRequired[str | None]


def series(
    frame: pd.DataFrame,
    x: str,
    y: str,
    color: str,
    look: Callable[[int], dict[str, Any]],
    *,
    plot_px: float = PLOT_PX,
    **words: Unpack[Words],
) -> go.Figure:
    """Draw a trace for each value of column ``color``, as :func:`curves` does.

    ``look`` says how plotly draws the series at a position; ``plot_px`` is the panel's height.
    """
    style.require(frame, (x, y, color))
    figure = go.Figure(layout=style.layout(plot_px, f"{words['title']} ({words['label']})"))
    longest = int(frame[color].astype(str).str.len().max())
    beside = {"orientation": "v", "x": 1, "xanchor": "left", "y": 1, "yref": "paper"}
    figure.update_layout(
        showlegend=True,
        legend={**beside, "yanchor": "top"},
        margin={"r": 64 + CHARACTER_PX * longest, "b": BOTTOM_PX},
        height=plot_px + figure.layout.margin.t + BOTTOM_PX,
    )
    for position, (name, rows) in enumerate(frame.groupby(color, sort=False)):
        drawn = look(position)
        if len(rows) == 1 and drawn["mode"] == "lines":  # a line of one point is nothing to see
            drawn = marked(position)
        figure.add_scatter(x=rows[x].to_numpy(), y=rows[y].to_numpy(), name=str(name), **drawn)
    figure.update_xaxes(style.axis(words.get("x_title") or x))
    figure.update_yaxes(style.axis(words.get("y_title") or y))
    return figure


def curves(frame: pd.DataFrame, x: str, y: str, color: str, **words: Unpack[Words]) -> go.Figure:
    """Draw a line for each value of column ``color``, in the order in which they first appear.

    A series keeps its colour and dash in every figure whose frame names the series in that order.

    Args:
        frame: one row a point, in the order of ``x`` within each series.
        x, y: the columns along the axes.
        color: the column that names the series, say "method".
        words: ``title`` and ``label``, and, if columns' names do not do, ``x_title`` and
            ``y_title`` (:class:`Words`).

    Raises:
        ValueError: the frame is empty or lacks a column.
    """
    return series(frame, x, y, color, lambda k: {"mode": "lines", "line": style.line(k)}, **words)


def bands(frame: pd.DataFrame, x: str, y: str, color: str, **words: Unpack[Words]) -> go.Figure:
    """Draw curves of repeated runs in bands; for the arguments see :func:`plots.curves`.

    A curve is the mean over the rows of equal ``x``, say each seed's loss after each epoch, in a
    band from the least to the greatest.
    """
    style.require(frame, (x, y, color))
    grouped = frame.groupby([color, x], sort=False)[y].agg(["mean", "min", "max"]).reset_index()
    words["y_title"] = words.get("y_title") or y
    figure = curves(grouped, x, "mean", color, **words)
    for position, (name, rows) in enumerate(grouped.groupby(color, sort=False)):
        # Who hides a curve, by its name in the legend, hides its band with it.
        figure.data[position].legendgroup = str(name)
        back = rows.iloc[::-1]
        figure.add_scatter(
            x=[*rows[x], *back[x]],
            y=[*rows["max"], *back["min"]],
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
    diagonal: bool = False,
    log: bool = False,
    **words: Unpack[Words],
) -> go.Figure:
    """Draw a marker for each row; each value of column ``color`` has its own colour and symbol.

    Args:
        frame: one row a point; a column of names is an axis with a place for each.
        x, y, color, words: as for :func:`curves`.
        diagonal: also draw y = x, in a square panel with equal ranges, to compare both columns.
        log: whether both axes are logarithmic.

    Raises:
        ValueError: the frame is empty or lacks a column, or a number has no logarithm.
    """
    plot_px = SQUARE_PX if diagonal else PLOT_PX
    figure = series(frame, x, y, color, marked, plot_px=plot_px, **words)
    if diagonal:
        both = _range(frame[[x, y]], log)
        line = np.power(10.0, both) if log else np.array(both)
        look = {"color": style.GREY, "dash": "dash", "width": 1.5}
        how = {"mode": "lines", "line": look, "hoverinfo": "skip", "legendrank": 2000}
        figure.add_scatter(x=line, y=line, name="y = x", **how)
        figure.data = (figure.data[-1], *figure.data[:-1])  # beneath the points
        layout = figure.layout
        title_px = CHARACTER_PX * len(style.whole(layout.title.text))
        layout.margin.r = max(layout.margin.r, 108, title_px - SQUARE_PX)
        layout.width = layout.margin.l + SQUARE_PX + layout.margin.r
    for axis, column in ((figure.layout.xaxis, x), (figure.layout.yaxis, y)):
        if diagonal or pd.api.types.is_numeric_dtype(frame[column]):
            ends = both if diagonal else _range(frame[[column]], log)
            axis.update(_log_axis(ends) if log else {}, range=ends)
    return figure


def intervals(
    frame: pd.DataFrame,
    row: str,
    mean: str,
    low: str,
    high: str,
    color: str,
    *,
    known: Sequence[str] = (),
    **words: Unpack[Words],
) -> go.Figure:
    """Draw a marker and a line from ``low`` to ``high`` for each row of the frame, beside zero.

    Args:
        frame: one row a mean.
        row: the column that names the figure's rows, in the order in which they first appear.
        mean: the column of the markers.
        low, high: the columns of the intervals' ends.
        color, words: as for :func:`curves`.
        known: the series of several figures, each of which is to look alike in all of them; by
            default those of the frame, in the order in which they first appear.
    """
    style.require(frame, (row, mean, low, high, color))
    (rows, names), (kind, kinds) = (pd.factorize(frame[column]) for column in (row, color))
    looks = [*known] or [*kinds]
    in_row = pd.Series(kind, frame.index).groupby(frame[row])
    beside = in_row.rank("dense") - 1 - (in_row.transform("nunique") - 1) / 2
    placed = frame.assign(place=rows + SHARE / len(kinds) * beside)
    figure = series(placed, mean, "place", color, lambda k: marked(looks.index(kinds[k])), **words)
    for trace, (_, own) in zip(figure.data, placed.groupby(color, sort=False), strict=True):
        above, below = (own[high] - own[mean]).to_numpy(), (own[mean] - own[low]).to_numpy()
        trace.error_x = {"array": above, "arrayminus": below, "thickness": 1.5, "width": 0}
    axis = style.rows([*names])
    quiet = {"mode": "lines", "showlegend": False, "hoverinfo": "skip"}
    line = {"color": style.GREY, "width": 1}
    figure.add_scatter(x=[0, 0], y=axis["range"][::-1], line=line, **quiet)
    least, most = min(0.0, frame[mean].min()), max(0.0, frame[mean].max())
    spread = (most - least) or (frame[high] - frame[low]).max() or 1.0
    start = max(least - REACH * spread, min(0.0, frame[low].min()))
    end = min(most + REACH * spread, max(0.0, frame[high].max()))
    figure.update_xaxes(range=[start - PAD * spread, end + PAD * spread])
    figure.update_yaxes(axis)
    height = ROW_PX * len(names) + figure.layout.margin.t + BOTTOM_PX
    longest = max(len(str(name)) for name in names)
    return figure.update_layout(height=height, margin={"l": 32 + CHARACTER_PX * longest})


def marked(position: int) -> dict[str, Any]:
    """Return how plotly draws the markers of the series at a position."""
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


def _log_axis(ends: tuple[float, float]) -> dict[str, Any]:
    """Return an axis whose ticks name whole numbers; plotly's say "2" and "5" for 20 and 50."""
    from matplotlib.ticker import MaxNLocator  # here, since most figures need none of it

    decades = 10.0 ** np.arange(np.floor(ends[0]), np.ceil(ends[1]))
    low, high = np.power(10.0, ends)
    even = np.asarray(MaxNLocator(5).tick_values(low, high))
    for ticks in (decades, np.outer(decades, (1, 2, 5)).ravel(), even):
        ticks = ticks[(low <= ticks) & (ticks <= high)]
        if len(ticks) >= LEAST_TICKS:
            break
    return {"type": "log", "tickvals": ticks.tolist(), "ticktext": [f"{tick:g}" for tick in ticks]}
