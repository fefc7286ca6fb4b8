"""A row of panels for each worker, one under another, above one time axis."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from pipekit.plots import style

GAP_PX = 12
NAME_PX = 68
"""Of the left margin, for "worker 15"."""


def worker_panels(
    workers: Sequence[int], row_px: float, *, columns: int = 1, ticks_px: int = 28
) -> go.Figure:
    """Return empty panels with the workers' names beside them.

    Args:
        workers: from the top.
        row_px: how high a panel is.
        columns: panels a worker.
        ticks_px: how wide the numbers along the vertical axes are.
    """
    count = len(workers)
    plot_px = count * (row_px + GAP_PX) - GAP_PX
    figure = make_subplots(
        rows=count,
        cols=columns,
        shared_xaxes=True,
        horizontal_spacing=0.07,
        vertical_spacing=GAP_PX / plot_px if count > 1 else 0,
    )
    figure.update_layout(style.layout(plot_px), margin_l=NAME_PX + ticks_px)
    for row, worker in enumerate(workers, start=1):
        write_beside(figure, row, f"worker {worker}", x=0, xanchor="right", xshift=-ticks_px)
    return figure


def write_beside(figure: go.Figure, row: int, text: str, **x: Any) -> None:
    """Write a text at half the height of a row's panels, at ``x`` of their width."""
    low, high = next(figure.select_yaxes(row=row, col=1)).domain
    place = {"xref": "paper", "y": (low + high) / 2, "yref": "paper", "yanchor": "middle"}
    figure.add_annotation(text=text, showarrow=False, **x, **place)


def steps(times: pd.Series, values: pd.Series, end: float) -> dict[str, np.ndarray]:
    """Return the x and y of what holds from each time to the next, and the last to the end."""
    return {"x": np.append(times, end), "y": np.append(values, values.iloc[-1])}
