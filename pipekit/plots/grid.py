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
WINNER = "#E69F00"


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
    row_px = min(ROW_PX, MOST_PX / len(down))
    room_px = style.PANEL_PX / len(across)
    least, most = frame[value].min(), frame[value].max()
    ends = np.linspace(least, most, len(SHADES) + 1)
    shade = np.clip(np.searchsorted(ends, frame[value], side="left") - 1, 0, len(SHADES) - 1)
    empty = frame[value].isna().to_numpy()
    place = {"across": across, "down": down, "x": x, "y": y}
    traces = [
        {
            **_cells(frame[(shade == number) & ~empty], **place),
            "name": f"{ends[number]:,.3g} to {ends[number + 1]:,.3g}" + ("" if number else f" {unit}"),
            "marker": {"color": color, "line": {"color": color, "width": 0}},
            "text": _texts(frame[(shade == number) & ~empty][value], room_px, row_px),
            "insidetextfont": _font("white" if number >= ON_DARK else "black"),
            "hovertemplate": f"{x} %{{customdata[0]}}, {y} %{{customdata[1]}}: "
            f"%{{customdata[2]:,.4~g}} {unit}<extra></extra>",
            "customdata": frame[(shade == number) & ~empty][[x, y, value]].to_numpy(),
        }
        for number, color in enumerate(SHADES)
        if ((shade == number) & ~empty).any()
    ]
    if empty.any():
        look = style.Look(missing, style.IDLE, style.GREY, 0, "x")
        traces.append(
            {
                **_cells(frame[empty], **place),
                "name": missing,
                "marker": _marker(look),
                "customdata": frame[empty][[x, y]].to_numpy(),
                "hovertemplate": f"{x} %{{customdata[0]}}, {y} %{{customdata[1]}}: {missing}"
                "<extra></extra>",
            }
        )
    framed = frame[(frame[x] == best[0]) & (frame[y] == best[1])]
    winner = style.Look("the best", style.TRANSPARENT, WINNER, 3, "")
    traces.append(
        {
            **_cells(framed, **place),
            "name": winner.name,
            "marker": _marker(winner),
            "hoverinfo": "skip",
        }
    )
    layout = style.layout(row_px * len(down), f"{title} ({label})")
    layout["barmode"] = "overlay"
    layout["bargap"] = 0
    layout["xaxis"] = _steps(across, x_title or x, [-0.5, len(across) - 0.5])
    layout["yaxis"] = _steps(down, y_title or y, [len(down) - 0.5, -0.5])
    return go.Figure(traces, layout)


def _cells(
    frame: pd.DataFrame, across: Sequence[Any], down: Sequence[Any], x: str, y: str
) -> dict[str, Any]:
    left = np.array([across.index(step) for step in frame[x]], dtype=float) - 0.46
    return {
        "type": "bar",
        "orientation": "h",
        "y": [down.index(step) for step in frame[y]],
        "base": left,
        "x": np.full(len(frame), 0.92),
        "width": 0.88,
        "textposition": "inside",
        "insidetextanchor": "middle",
        "textangle": 0,
    }


def _marker(look: style.Look) -> dict[str, Any]:
    return {
        "color": look.color,
        "line": {"color": look.edge, "width": look.edge_px},
        "pattern": style.pattern(look),
    }


def _font(color: str) -> dict[str, Any]:
    return {"color": color, "family": style.NARROW_FONTS, "size": NUMBER_PX}


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
