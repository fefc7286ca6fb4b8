"""Horizontal bars, sources side by side, for the figures of Table 1."""

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from pipekit.plots import style

BAR_PX = 17
PATTERNS = "", "/", "x"
"""Of the first, second and third bar of a row, for greyscale."""


def bars(frame: pd.DataFrame, *, title: str, label: str, x_title: str) -> go.Figure:
    """Draw a bar for each row of columns "row", "source" and "value", sources side by side."""
    rows, sources = list(frame["row"].unique()), list(frame["source"].unique())
    thick = 0.8 / len(sources)
    figure = go.Figure(layout=style.layout(BAR_PX * len(rows) * len(sources), f"{title} ({label})"))
    for position, source in enumerate(sources):
        part = frame[frame["source"] == source]
        places = part["row"].map(rows.index) + thick * (position - (len(sources) - 1) / 2)
        figure.add_bar(
            name=source,
            orientation="h",
            y=places.to_numpy(),
            base=np.zeros(len(part)),
            x=part["value"].to_numpy(),
            width=thick,
            marker={
                "color": style.SERIES_COLORS[position],
                "line": {"width": 0},
                "pattern": {"shape": PATTERNS[position], "fgcolor": "black", "fgopacity": 0.5},
            },
        )
    figure.update_xaxes(style.axis(x_title), range=[0, 1.05 * float(frame["value"].max())])
    figure.update_yaxes(
        style.axis(tickvals=list(range(len(rows))), ticktext=rows, showgrid=False),
        range=[len(rows) - 0.5, -0.5],
    )
    figure.update_layout(margin={"l": 8 * max(map(len, rows)) + 16})
    return figure
