"""Means with their intervals, one row a case, several series beside one another in a row."""

from collections.abc import Sequence
from itertools import chain

import pandas as pd
import plotly.graph_objects as go

from pipekit.plots import style
from pipekit.plots.charts.series import BOTTOM_PX, series
from pipekit.plots.frames import require

ROW_PX = 34
CHARACTER_PX = 8
SHARE = 0.6
"""Of a row, which its series divide among them."""
PAD, REACH = 0.05, 1.0
"""Of the means' spread, on either side: of what is shown, and the most that an interval may take;
what reaches further leaves the picture."""


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
        low: the column of the intervals' lower ends.
        high: likewise, of the upper ends.
        color: the column that names the series.
        title: what is shown, without the label.
        label: what the numbers are: measured, emulated, simulated, exact or paper.
        x_title: with its unit; by default the name of the column ``mean``.
        known: the series of several figures, each of which is to look alike in all of them; by
            default those of the frame, in the order in which they first appear.

    Raises:
        ValueError: the frame is empty or lacks a column.
    """
    require(frame, (row, mean, low, high, color))
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
    figure = series(
        placed,
        mean,
        "place",
        color,
        lambda position: {
            "mode": "markers",
            "marker": style.marker(looks.index(kinds[position])),
        },
        title=title,
        label=label,
        x_title=x_title,
        y_title=None,
        plot_px=ROW_PX * len(names),
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
    rows = [-0.5, len(names) - 0.5]
    figure.add_scatter(x=[0, 0], y=rows, line={"color": style.GREY, "width": 1}, **quiet)
    least, most = min(0.0, frame[mean].min()), max(0.0, frame[mean].max())
    spread = (most - least) or 1.0
    start = max(least - REACH * spread, min(0.0, frame[low].min()))
    end = min(most + REACH * spread, max(0.0, frame[high].max()))
    figure.update_xaxes(range=[start - PAD * spread, end + PAD * spread])
    places = [*range(len(names))]
    figure.update_yaxes(
        style.axis(tickvals=places, ticktext=names, range=rows[::-1], showgrid=False)
    )
    margin = style.MARGIN_PX["t"] + BOTTOM_PX
    longest = max(len(str(name)) for name in names)
    figure.update_layout(
        height=ROW_PX * len(names) + margin, margin={"l": 32 + CHARACTER_PX * longest}
    )
    return figure
