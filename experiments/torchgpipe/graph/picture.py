"""Figures 1 and 2 of torchgpipe, drawn from edges."""

from math import nan

import pandas as pd
import plotly.graph_objects as go

from experiments.torchgpipe.graph.edges import Edges, PaperTask
from pipekit.plots import style


def frame(edges: Edges) -> pd.DataFrame:
    """Return the edges as rows: their two tasks' names."""
    return pd.DataFrame([{"before": name(a), "after": name(b)} for a, b in sorted(edges)])


def name(task: PaperTask) -> str:
    """Return what a task is called in the paper, say F'3,1."""
    return f"{task.kind}{task.i},{task.j}"


def draw(edges: Edges, title: str) -> go.Figure:
    """Return the graph: a row a microbatch, a colour a device.

    Data flows right.  Edges between microbatches are dashed: down in forwards, up in backwards.
    """
    tasks = sorted({task for edge in edges for task in edge})
    n, m = max(t.j for t in tasks), max(t.i for t in tasks)
    width = 2 if any(t.kind == "F'" for t in tasks) else 1

    def x(task: PaperTask) -> float:
        if task.kind == "F":
            return task.j - 1
        return n + width * (n - task.j) + (width - 1 if task.kind == "B" else 0)

    figure = go.Figure()
    for label, dash, crossing in ("data", "solid", False), ("order on a device", "dash", True):
        chosen = [edge for edge in sorted(edges) if (edge[0].i != edge[1].i) == crossing]
        figure.add_scatter(
            x=[place for a, b in chosen for place in (x(a), x(b), nan)],
            y=[place for a, b in chosen for place in (-a.i, -b.i, nan)],
            mode="lines",
            line={"color": style.GREY, "dash": dash, "width": 1.5},
            name=label,
            hoverinfo="skip",
        )
    for j in range(1, n + 1):
        own = [t for t in tasks if t.j == j]
        figure.add_scatter(
            x=[x(t) for t in own],
            y=[-t.i for t in own],
            mode="markers",
            marker={**style.marker(j - 1), "size": 14},
            name=f"device {j}",
            hovertext=[name(t) for t in own],
            hoverinfo="text",
        )
    left, right, low, high = -0.5, n + width * n - 0.3, -m - 0.5, -0.4
    for task in tasks:
        figure.add_annotation(
            x=(x(task) - left) / (right - left),
            y=(-task.i - low) / (high - low),
            xref="paper",
            yref="paper",
            text=name(task),
            showarrow=False,
            xanchor="left",
            yanchor="bottom",
            xshift=7,
            yshift=5,
            font={"size": 11},
        )
    flow = "data flows right; order on a device: down in forwards, up in backwards"
    rows = {
        "tickvals": [-i for i in range(1, m + 1)],
        "ticktext": [str(i) for i in range(1, m + 1)],
    }
    figure.update_layout(style.layout(70 * m, title))
    figure.update_xaxes(style.axis(flow, range=[left, right], showgrid=False, showticklabels=False))
    figure.update_yaxes(style.axis("microbatch", range=[low, high], showgrid=False), **rows)
    return figure
