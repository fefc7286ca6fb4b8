"""Means in a line from a low to a high value, a row a category."""

from collections.abc import Sequence
from typing import Unpack

import pandas as pd
import plotly.graph_objects as go

from pipekit.plots import style
from pipekit.plots.series import BOTTOM_PX, CHARACTER_PX, PAD, Words, marked, series

ROW_PX = 34  # of a row
SHARE = 0.6  # of a row of intervals, which its series divide among them
REACH = 1.0
"""Of the means' spread, on either side, the most that an interval may take; what reaches further
leaves the picture."""


def intervals(
    frame: pd.DataFrame,
    row: str,
    mean: str,
    low: str,
    high: str,
    color: str,
    *,
    known: Sequence[str] = (),
    zero: bool = True,
    **words: Unpack[Words],
) -> go.Figure:
    """Draw a marker and a line from ``low`` to ``high`` for each row of the frame.

    Args:
        frame: one row a mean.
        row: the column that names the figure's rows, in the order in which they first appear.
        mean: the column of the markers.
        low, high: the columns of the intervals' ends.
        color, words: as for :func:`curves`.
        known: the series of several figures, each of which is to look alike in all of them; by
            default those of the frame, in the order in which they first appear.
        zero: whether the axis has zero, with a line, beside the intervals.
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
    figure = series(placed, mean, "place", color, lambda k: marked(looks.index(kinds[k])), **words)
    for trace, (_, own) in zip(figure.data, placed.groupby(color, sort=False), strict=True):
        above, below = (own[high] - own[mean]).to_numpy(), (own[mean] - own[low]).to_numpy()
        trace.error_x = {"array": above, "arrayminus": below, "thickness": 1.5, "width": 0}
    rows = style.rows(names)
    shown = [0.0] if zero else []
    if zero:
        quiet = {"mode": "lines", "showlegend": False, "hoverinfo": "skip"}
        line = {"color": style.GREY, "width": 1}
        figure.add_scatter(x=[0, 0], y=rows["range"][::-1], line=line, **quiet)
    least, most = min([*shown, frame[mean].min()]), max([*shown, frame[mean].max()])
    spread = (most - least) or (frame[high] - frame[low]).max() or 1.0
    start = max(least - REACH * spread, min([*shown, frame[low].min()]))
    end = min(most + REACH * spread, max([*shown, frame[high].max()]))
    figure.update_xaxes(range=[start - PAD * spread, end + PAD * spread])
    figure.update_yaxes(rows)
    height = ROW_PX * len(names) + figure.layout.margin.t + BOTTOM_PX
    longest = max(len(str(name)) for name in names)
    return figure.update_layout(height=height, margin={"l": 32 + CHARACTER_PX * longest})


def spreads(
    frame: pd.DataFrame,
    row: str,
    value: str,
    color: str,
    *,
    zero: bool = False,
    **words: Unpack[Words],
) -> go.Figure:
    """Draw each category's mean, in a line from its least value to its greatest.

    Args:
        frame: one row a value, say a seed's accuracy.
        row: the column of the categories, which name the figure's rows.
        value: the column of the numbers.
        color, zero, words: as for :func:`intervals`.
    """
    style.require(frame, (row, value, color))
    found = frame.groupby([row, color], sort=False)[value].agg(["mean", "min", "max"]).reset_index()
    words["x_title"] = words.get("x_title") or value
    return intervals(found, row, "mean", "min", "max", color, zero=zero, **words)
