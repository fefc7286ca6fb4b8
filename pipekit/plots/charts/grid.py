"""A number for each pair of settings: a map of cells, the darker the more."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from pipekit.plots import style
from pipekit.plots.frames import require

ROW_PX, MOST_PX = 34, 520
"""Of a row, and of all."""
SHADES = ("#E3EEF7", "#B5D2EA", "#7FB2DA", "#4590C6", "#0072B2")
"""From the least to the most; evenly spaced in greyscale too."""
ON_DARK = 3
"""The shade from which on text is white."""
MOST_TICKS = 16
NUMBER_PX = 11
CELL = 0.9
"""Of a step, in both directions."""
FONT = {"family": style.NARROW_FONTS, "size": NUMBER_PX}
BEST = "#E69F00"


def grid(
    frame: pd.DataFrame,
    x: str,
    y: str,
    value: str,
    *,
    best: tuple[Any, Any],
    title: str,
    label: str,
    unit: str,
    missing: str,
    x_title: str | None = None,
    y_title: str | None = None,
) -> go.Figure:
    """Draw a cell for each row, in five shades, with the number where there is room.

    Args:
        frame: one row a cell; where there is no number, the cell is hatched.
        x: the column along the horizontal axis; each of its values is a step.
        y: the column along the vertical axis; likewise, the least on top.
        value: the column of the numbers.
        best: x and y of the cell to frame.
        title: what is shown, without the label.
        label: what the numbers are: measured, emulated, simulated, exact or paper.
        unit: of the numbers.
        missing: what a cell without number means.
        x_title: by default the column's name.
        y_title: likewise.

    Raises:
        ValueError: the frame is empty or lacks a column, or no cell has a number.
    """
    require(frame, (x, y, value))
    if frame[value].isna().all():
        raise ValueError(f"no cell of the column {value!r} has a number")
    across, down = (np.sort(frame[column].unique()).tolist() for column in (x, y))
    row_px, column_px = min(ROW_PX, MOST_PX / len(down)), style.PANEL_PX / len(across)
    placed = frame.assign(
        across=[across.index(step) for step in frame[x]],
        down=[down.index(step) for step in frame[y]],
        shade=_shades(frame[value]),
    )
    hover = f"{x} %{{customdata[0]}}, {y} %{{customdata[1]}}: "
    ends = np.linspace(frame[value].min(), frame[value].max(), len(SHADES) + 1)
    traces = []
    for number, cells in placed.groupby("shade"):
        shade = int(number)
        traces.append(
            {
                **_cells(cells),
                "name": f"to {ends[shade + 1]:,.3g}",
                "marker": {"color": SHADES[shade], "line": {"width": 0}},
                "text": _texts(cells[value], column_px, row_px),
                "insidetextfont": {**FONT, "color": "white" if shade >= ON_DARK else "black"},
                "customdata": cells[[x, y, value]].to_numpy(),
                "hovertemplate": f"{hover}%{{customdata[2]:,.4~g}} {unit}<extra></extra>",
            }
        )
    traces[0]["name"] += f" {unit}"
    cells = placed[placed["shade"].isna()]
    if len(cells):
        empty = style.Style(missing, style.IDLE, style.GREY, 1, "x")
        more = {"customdata": cells[[x, y]].to_numpy()}
        more["hovertemplate"] = f"{hover}{missing}<extra></extra>"
        traces.append({**_cells(cells), "name": missing, "marker": _marker(empty), **more})
    framed = placed[(placed[x] == best[0]) & (placed[y] == best[1])]
    frame_look = style.Style("best", style.TRANSPARENT, BEST, 3, "")
    traces.append(
        {
            **_cells(framed),
            "name": frame_look.name,
            "marker": _marker(frame_look),
            "hoverinfo": "skip",
        }
    )
    layout = style.layout(row_px * len(down), f"{title} ({label})")
    longest = max(len(str(step)) for step in down)
    layout["margin"] = style.MARGIN_PX | {"l": max(style.MARGIN_PX["l"], 32 + 8 * longest)}
    layout["barmode"] = "overlay"
    layout["xaxis"] = _steps(across, x_title or x, [-0.5, len(across) - 0.5])
    layout["yaxis"] = _steps(down, y_title or y, [len(down) - 0.5, -0.5])
    return go.Figure(traces, layout)


def _shades(values: pd.Series) -> pd.Series:
    """Return the number of each value's shade, or NaN where there is no value."""
    spread = values.max() - values.min() or 1
    return np.floor((values - values.min()) / spread * len(SHADES)).clip(upper=len(SHADES) - 1)


def _cells(frame: pd.DataFrame) -> dict[str, Any]:
    return {
        "type": "bar",
        "orientation": "h",
        "y": frame["down"].to_numpy(),
        "base": frame["across"].to_numpy() - CELL / 2,
        "x": np.full(len(frame), CELL),
        "width": CELL,
        "textposition": "inside",
        "insidetextanchor": "middle",
        "textangle": 0,
    }


def _marker(look: style.Style) -> dict[str, Any]:
    return {
        "color": look.color,
        "line": {"color": look.edge, "width": look.edge_px},
        "pattern": style.pattern(look),
    }


def _texts(values: pd.Series, room_px: float, row_px: float) -> list[str] | None:
    texts = [f"{number:,.3g}" if number < 1e3 else f"{number:,.0f}" for number in values]
    longest = max(map(len, texts))
    fits = longest * 0.6 * NUMBER_PX < room_px and row_px > NUMBER_PX + 2
    return texts if fits else None


def _steps(values: Sequence[Any], title: str, ends: Sequence[float]) -> dict[str, Any]:
    """Return an axis with a tick for each value, or for some of many."""
    every = -(-len(values) // MOST_TICKS)
    shown = [place for place in range(len(values)) if place % every == 0]
    texts = [str(values[place]) for place in shown]
    return style.axis(title, tickvals=shown, ticktext=texts, range=ends, showgrid=False)
