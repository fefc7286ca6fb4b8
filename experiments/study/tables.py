"""Tables of a study and their figures: a function over a grid, ours beside the printed."""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import combinations, pairwise
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from experiments.study.claims import points
from pipekit import plots
from pipekit.ledger import claims
from pipekit.plots import style
from pipekit.traces import Trace


def table(function: Callable[..., Any], **axes: Iterable[Any]) -> pd.DataFrame:
    """Return a row for each combination of the axes' values: these, and what the function returns.

    A single number gets a column with the function's name.
    """
    rows = []
    for point in points({name: list(values) for name, values in axes.items()}):
        result = function(**point)
        if not isinstance(result, Mapping):
            result = {getattr(function, "__name__", ""): result}
        rows.append(point | dict(result))
    return pd.DataFrame(rows)


def printed(claim: str) -> str:
    """Return the value that a paper prints for a claim, as text."""
    return claims.load()[claim].value


def printed_number(claim: str) -> Any:
    """Return the number, or the list of numbers, that a claim's criterion compares with."""
    return claims.load()[claim].reference


def farthest(values: Iterable[Any], expected: float) -> Any:
    """Return the number that is farthest from what all should be."""
    return max(values, key=lambda value: abs(value - expected))


def largest_that_fits(fits: Callable[[int], bool], most: int | None = None) -> int:
    """Return the largest number that fits, up to ``most`` or found by doubling; 0 if 1 does not."""
    if most is None:
        most = 1
        while fits(most):
            most *= 2
    return bisect_left(range(1, most + 1), True, key=lambda number: not fits(number))


def splits(whole: int, parts: int) -> Iterator[list[int]]:
    """Yield every way to cut so many, say layers or machines, into parts of one or more."""
    for cuts in combinations(range(1, whole), parts - 1):
        yield [b - a for a, b in pairwise([0, *cuts, whole])]


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

    ``x`` says what the numbers are. Also returns the points.
    """
    rows, middle = np.arange(len(numbers)), (len(numbers.columns) - 1) / 2
    drawn = pd.concat(
        pd.DataFrame({x: column.to_numpy(), "place": rows + apart * (at - middle), "series": name})
        for at, (name, column) in enumerate(numbers.items())
    )
    figure = plots.points(drawn, x, "place", "series", title=title, label=label, x_title=x_title)
    figure.update_yaxes(style.rows([*numbers.index]), showgrid=True)
    figure.update_xaxes(range=[0, 1.05 * drawn[x].max()])
    return figure.update_layout(margin={"l": 150}), drawn


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
    """Draw the mean "accuracy" (%) over seeds over ``x``, in a band from the worst to the best."""
    y_title = "test accuracy (%), mean and range of seeds"
    figure = plots.bands(frame, x, "accuracy", color, title=title, label=label, y_title=y_title)
    return with_line(figure, [0, frame[x].max()], [target] * 2, f"target {target:.3g} %")
