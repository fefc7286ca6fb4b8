"""Intervals: a row a case, series beside one another in it, and zero."""

import pandas as pd
import pytest

from pipekit.plots import intervals

MEANS = pd.DataFrame(
    [("x", "a", 1.0, 0.5, 9.0), ("x", "b", 2.0, 1.5, 2.5), ("y", "a", -1.0, -2.0, 0.0)],
    columns=["case", "kind", "mean", "low", "high"],
)


def test_each_mean_has_its_line_and_series_share_a_row() -> None:
    figure = intervals(
        MEANS, "case", "mean", "low", "high", "kind", title="t", label="measured", x_title="nats"
    )
    a, b, a_lines, b_lines, zero = figure.data
    assert ([*a.x], [*b.x]) == ([1.0, -1.0], [2.0])
    assert a.y[0] < b.y[0] == -a.y[0]
    assert a.y[1] == 1, "alone in its row, it is in the middle"
    assert a_lines.x == (0.5, 9.0, None, -2.0, 0.0, None)
    assert a_lines.y == (a.y[0], a.y[0], None, a.y[1], a.y[1], None)
    assert b_lines.x == (1.5, 2.5, None)
    assert zero.x == (0, 0)
    low, high = figure.layout.xaxis.range
    assert low < -2 < 2 < high < 9, "a wide interval does not press the means together"
    assert figure.layout.yaxis.ticktext == ("x", "y")


def test_a_series_looks_alike_in_figures_with_others() -> None:
    only = MEANS[MEANS["kind"] == "b"]
    figures = [
        intervals(
            frame, "case", "mean", "low", "high", "kind", title="", label="", known=("a", "b")
        )
        for frame in (MEANS, only)
    ]
    of_b = [next(trace.marker for trace in each.data if trace.name == "b") for each in figures]
    assert of_b[0] == of_b[1]
    assert of_b[0].color != figures[0].data[0].marker.color


def test_missing_columns_are_named() -> None:
    with pytest.raises(ValueError, match="lacks the column 'low'"):
        intervals(
            MEANS.drop(columns="low"), "case", "mean", "low", "high", "kind", title="", label=""
        )
