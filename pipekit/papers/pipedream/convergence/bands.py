"""Accuracy over epochs or hours, as a band over seeds with the target marked."""

import pandas as pd
import plotly.graph_objects as go

from pipekit import plots
from pipekit.plots import style


def banded(
    frame: pd.DataFrame, x: str, color: str, target: float, *, title: str, label: str, x_title: str
) -> go.Figure:
    """Draw the mean accuracy over seeds, in a band from the worst to the best seed.

    Args:
        frame: columns ``x``, ``color`` and ``accuracy`` (%), a row for each seed and point.
        x: the column along the horizontal axis.
        color: the column that names the curves.
        target: accuracy to mark, %.
        title: what is found, without the label.
        label: what the numbers are.
        x_title: with its unit.
    """
    figure = plots.bands(
        frame,
        x,
        "accuracy",
        color,
        title=title,
        label=label,
        x_title=x_title,
        y_title="test accuracy (%), mean and range of seeds",
    )
    figure.add_scatter(
        x=[0, frame[x].max()],
        y=[target, target],
        name=f"target {target:.3g} %",
        mode="lines",
        line={"color": style.GREY, "dash": "dash", "width": 1},
        legendrank=2000,
    )
    return figure
