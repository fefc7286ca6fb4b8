"""Parts of figures that several papers draw: named rows, and a line to compare with."""

from collections.abc import Sequence

import pandas as pd
import plotly.graph_objects as go

from pipekit import plots
from pipekit.plots import style
from pipekit.traces import Trace


def named_rows(
    numbers: pd.DataFrame,
    x: str,
    *,
    title: str,
    label: str,
    x_title: str | None = None,
    apart: float = 0,
) -> tuple[go.Figure, pd.DataFrame]:
    """Draw a table's rows one under another, a point for each column, ``apart`` in rows; by series.

    ``x`` says what the numbers are. Also returns the points: x, place (of the row), series.
    """
    middle = (len(numbers.columns) - 1) / 2

    def places(position: int) -> list[float]:
        return [row + apart * (position - middle) for row in range(len(numbers))]

    drawn = pd.concat(
        pd.DataFrame({x: numbers[name].to_numpy(), "place": places(position), "series": name})
        for position, name in enumerate(numbers)
    )
    figure = plots.points(
        drawn, x, "place", "series", title=title, label=label, x_title=x_title, y_title=" "
    )
    names = list(numbers.index)
    ends = [len(names) - 0.6, -0.4]
    figure.update_yaxes(tickvals=list(range(len(names))), ticktext=names, range=ends)
    figure.update_xaxes(range=[0, 1.05 * drawn[x].max()])
    figure.update_layout(margin={"l": 150})
    return figure, drawn


def rows_figure(traces: Sequence[Trace], titles: Sequence[str], rows: Sequence[str]) -> go.Figure:
    """Draw traces one under another; ``rows`` names the rows, which are not workers."""
    figure = plots.compare(*traces)
    for trace, title, note in zip(traces, titles, figure.layout.annotations, strict=True):
        note.text = f"{title} ({trace.label})"
    figure.update_yaxes(tickvals=list(range(len(rows))), ticktext=list(rows))
    return figure


def with_line(
    figure: go.Figure,
    x: Sequence[float],
    y: Sequence[float],
    name: str,
    dash: str = "dash",
    **panel: int,
) -> go.Figure:
    """Add a grey line to compare with, at the end of the legend, in a panel (``row``, ``col``)."""
    line = {"color": style.GREY, "dash": dash, "width": 1.5}
    shown = {"name": name, "mode": "lines", "line": line, "legendrank": 2000}
    return figure.add_scatter(x=x, y=y, **shown, **panel)


def accuracies(
    frame: pd.DataFrame, x: str, color: str, target: float, title: str, label: str = "measured"
) -> go.Figure:
    """Draw the mean "accuracy" (%) over seeds over ``x``, in a band from the worst to the best.

    The frame has a row for each seed and point; the target (%) is marked.
    """
    y_title = "test accuracy (%), mean and range of seeds"
    figure = plots.bands(frame, x, "accuracy", color, title=title, label=label, y_title=y_title)
    return with_line(figure, [0, frame[x].max()], [target] * 2, f"target {target:.3g} %")
