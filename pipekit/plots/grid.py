"""A number for each pair of settings: a map of cells, the darker the more."""

from collections.abc import Sequence
from typing import Any, Unpack

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from pipekit.plots import style
from pipekit.plots.series import Words

ROW_PX, MOST_PX = 34, 520  # of a row, and of all
SHADES = ("#E3EEF7", "#B5D2EA", "#7FB2DA", "#4590C6", "#0072B2")
"""From the least to the most; evenly spaced in greyscale too."""
ON_DARK = 3  # the shade from which on text is white
MOST_TICKS = 16
NUMBER_PX = 11
CELL = 0.9  # of a step, in both directions
BEST = style.Style("best", style.TRANSPARENT, "#E69F00", 3, "")


def grid(
    frame: pd.DataFrame,
    x: str,
    y: str,
    value: str,
    *,
    best: tuple[Any, Any],
    unit: str,
    missing: str,
    **words: Unpack[Words],
) -> go.Figure:
    """Draw a cell for each row, in five shades, with the number where there is room.

    Args:
        frame: one row a cell; where there is no number, the cell is hatched.
        x, y: the columns along the axes; each value is a step, of ``y`` the least on top.
        value, unit: the column of the numbers, and their unit.
        best: x and y of the cell to frame.
        missing: what a cell without number means.
        words: as for :func:`curves`.

    Raises:
        ValueError: the frame is empty or lacks a column, or no cell has a number.
    """
    style.require(frame, (x, y, value))
    if frame[value].isna().all():
        raise ValueError(f"no cell of the column {value!r} has a number")
    across, down = (np.sort(frame[column].unique()).tolist() for column in (x, y))
    row_px, column_px = min(ROW_PX, MOST_PX / len(down)), style.PANEL_PX / len(across)
    least, most = frame[value].min(), frame[value].max()
    shades = np.floor((frame[value] - least) / (most - least or 1) * len(SHADES))
    placed = frame.assign(
        across=[across.index(step) for step in frame[x]],
        down=[down.index(step) for step in frame[y]],
        shade=shades.clip(upper=len(SHADES) - 1),
    )
    hover = f"{x} %{{customdata[0]}}, {y} %{{customdata[1]}}: "
    ends = np.linspace(least, most, len(SHADES) + 1)
    traces: list[dict[str, Any]] = []
    for number, cells in placed.groupby("shade"):
        shade = int(number)
        name = f"to {ends[shade + 1]:,.3g}" + (f" {unit}" if not traces else "")
        look = style.Style(name, SHADES[shade], SHADES[shade], 0, "")
        color = "white" if shade >= ON_DARK else "black"
        texts = [f"{n:,.3g}" if n < 1e3 else f"{n:,.0f}" for n in cells[value]]
        fits = max(map(len, texts)) * 0.6 * NUMBER_PX < column_px and row_px > NUMBER_PX + 2
        drawn = _cells(
            cells, look, text=texts if fits else None, font={"size": NUMBER_PX, "color": color}
        )
        drawn["customdata"] = cells[[x, y, value]].to_numpy()
        drawn["hovertemplate"] = f"{hover}%{{customdata[2]:,.4~g}} {unit}<extra></extra>"
        traces.append(drawn)
    empty = placed[placed["shade"].isna()]
    if len(empty):
        told = {"customdata": empty[[x, y]].to_numpy()}
        told["hovertemplate"] = f"{hover}{missing}<extra></extra>"
        look = style.Style(missing, style.IDLE, style.GREY, 1, "x")
        traces.append(_cells(empty, look) | told)
    framed = placed[(placed[x] == best[0]) & (placed[y] == best[1])]
    traces.append(_cells(framed, BEST) | {"hoverinfo": "skip"})
    layout = style.layout(row_px * len(down), f"{words['title']} ({words['label']})")
    longest = max(len(str(step)) for step in down)
    layout["margin"]["l"] = max(style.MARGIN_PX["l"], 32 + 8 * longest)
    layout["barmode"] = "overlay"
    layout["xaxis"] = _steps(across, words.get("x_title") or x, [-0.5, len(across) - 0.5])
    layout["yaxis"] = _steps(down, words.get("y_title") or y, [len(down) - 0.5, -0.5])
    return go.Figure(traces, layout)


def _cells(frame: pd.DataFrame, look: style.Style, **text: Any) -> dict[str, Any]:
    down, across = frame["down"].to_numpy(), frame["across"].to_numpy()
    lengths = np.full(len(frame), CELL)
    return style.bar(look, down, across - CELL / 2, lengths, width=CELL, **text)


def _steps(values: Sequence[Any], title: str, ends: Sequence[float]) -> dict[str, Any]:
    every = -(-len(values) // MOST_TICKS)
    shown = [place for place in range(len(values)) if place % every == 0]
    texts = [str(values[place]) for place in shown]
    return style.axis(title, tickvals=shown, ticktext=texts, range=ends, showgrid=False)
