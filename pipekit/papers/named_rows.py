"""A figure with a named row for each of a table, and a point a series in it."""

import pandas as pd
import plotly.graph_objects as go

from pipekit import plots


def named_rows(
    numbers: pd.DataFrame, x: str, *, title: str, label: str, x_title: str | None = None
) -> tuple[go.Figure, pd.DataFrame]:
    """Draw a table's rows one under another.

    Args:
        numbers: a row each, by name; a column is a series.
        x: what the numbers are.
        title: what is shown, without the label.
        label: what kinds of numbers they are.
        x_title: with the unit; by default ``x``.

    Returns:
        The figure, and its points: x, place (of the row, from the top), series.
    """
    drawn = pd.concat(
        pd.DataFrame({x: numbers[name].to_numpy(), "place": range(len(numbers)), "series": name})
        for name in numbers
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
