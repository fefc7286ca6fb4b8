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
