"""Charts of numbers: curves, bands, points and intervals; shares."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest

from pipekit import schedules
from pipekit.plots import bands, breakdown, curves, intervals, points, static, style
from pipekit.traces import Trace
from pipekit.traces.breakdown import CATEGORIES

FRAME = pd.DataFrame(
    {
        "method": ["b", "a", "b", "a"],
        "predicted": [1.0, 20.0, 3.0, 4.0],
        "found": [1.5, 18.0, 2.5, 5.0],
    }
)
WORDS: dict[str, Any] = {"title": "Time of a batch", "label": "emulated"}
RUNS = pd.DataFrame(
    [
        (m, step, base + seed)
        for m, base in [("a", 1.0), ("b", 5.0)]
        for seed in (0, 3, 9)
        for step in (0, 1)
    ],
    columns=["method", "step", "loss"],
)
MEANS = pd.DataFrame(
    [("x", "a", 1.0, 0.5, 9.0), ("x", "b", 2.0, 1.5, 2.5), ("y", "a", -1.0, -2.0, 0.0)],
    columns=["case", "kind", "mean", "low", "high"],
)
ENDS = "case", "mean", "low", "high", "kind"


@pytest.mark.parametrize("draw", [curves, points])
def test_each_series_has_its_look_in_the_order_of_the_frame(draw: Callable[..., Any]) -> None:
    figure = draw(FRAME, "predicted", "found", "method", x_title="predicted (s)", **WORDS)
    assert [trace.name for trace in figure.data] == ["b", "a"]
    assert figure.data[1].y.tolist() == [18.0, 5.0]
    if draw is points:
        looks = [(t.mode, t.marker.color, t.marker.symbol) for t in figure.data]
        wanted = [("markers", *list(style.marker(i).values())[:2]) for i in range(2)]
    else:
        looks = [(t.mode, t.line.color, t.line.dash) for t in figure.data]
        wanted = [("lines", *list(style.line(i).values())[:2]) for i in range(2)]
    assert looks == wanted
    layout = figure.layout
    assert layout.title.text == "Time of a batch (emulated)"
    assert (layout.xaxis.title.text, layout.yaxis.title.text) == ("predicted (s)", "found")


@pytest.mark.parametrize("draw", [curves, points, bands])
def test_missing_columns_and_empty_frames_are_refused(draw: Callable[..., Any]) -> None:
    with pytest.raises(ValueError, match="lacks the column 'time'; it has"):
        draw(FRAME, "time", "found", "method", **WORDS)
    with pytest.raises(ValueError, match="no rows"):
        draw(FRAME.iloc[:0], "predicted", "found", "method", **WORDS)


@pytest.mark.parametrize("log", [False, True])
def test_the_diagonal_crosses_a_square_panel_of_equal_ranges_beneath_the_points(log: bool) -> None:
    figure = points(FRAME, "predicted", "found", "method", diagonal=True, log=log, **WORDS)
    layout, line = figure.layout, figure.data[0]
    assert layout.xaxis.range == layout.yaxis.range
    assert line.name == "y = x"
    np.testing.assert_array_equal(line.x, line.y)
    ends = np.log10(line.x) if log else line.x
    assert ends == pytest.approx(layout.xaxis.range)
    assert line.x[0] < 1 < 20 < line.x[1]
    margin = layout.margin
    assert layout.width - margin.l - margin.r == layout.height - margin.t - margin.b


def test_the_static_picture_has_the_same_points_ranges_and_names() -> None:
    live = points(FRAME, "predicted", "found", "method", diagonal=True, **WORDS)
    canvas = static.draw(live)
    (axes,) = canvas.axes
    assert (axes.get_xlim(), axes.get_ylim()) == (live.layout.xaxis.range, live.layout.yaxis.range)
    assert [line.get_marker() for line in axes.lines] == ["None", "o", "s"]
    for line, trace in zip(axes.lines, live.data, strict=True):
        np.testing.assert_array_equal(line.get_xdata(), trace.x)
        np.testing.assert_array_equal(line.get_ydata(), trace.y)
    (legend,) = canvas.legends
    assert [text.get_text() for text in legend.get_texts()] == ["b", "a", "y = x"]


@pytest.mark.parametrize(
    ("values", "ticks"),
    [
        ([0.01, 100.0], ["0.01", "0.1", "1", "10", "100"]),
        ([20.0, 300.0], ["20", "50", "100", "200"]),
        ([3.0, 4.0], ["3", "3.25", "3.5", "3.75", "4"]),
    ],
)
def test_a_logarithmic_axis_has_ticks_however_short(values: list[float], ticks: list[str]) -> None:
    frame = pd.DataFrame({"method": "a", "x": values, "y": values})
    figure = points(frame, "x", "y", "method", log=True, **WORDS)
    assert [*figure.layout.xaxis.ticktext] == ticks


def test_each_series_is_its_mean_in_a_band_from_least_to_greatest() -> None:
    figure = bands(RUNS, "step", "loss", "method", title="t", label="measured")
    named = {trace.name: list(trace.y) for trace in figure.data if trace.showlegend is not False}
    assert named == {"a": [5.0, 5.0], "b": [9.0, 9.0]}
    outlines = [list(trace.y) for trace in figure.data if trace.showlegend is False]
    assert outlines == [[10.0, 10.0, 1.0, 1.0], [14.0, 14.0, 5.0, 5.0]]
    together = [trace.legendgroup for trace in figure.data]
    assert together == ["a", "b", "a", "b"], "a band is hidden with its curve"


def test_each_mean_has_its_line_and_series_share_a_row() -> None:
    figure = intervals(MEANS, *ENDS, x_title="nats", **WORDS)
    a, b, zero = figure.data
    assert ([*a.x], [*b.x]) == ([1.0, -1.0], [2.0])
    assert a.y[0] < b.y[0] == -a.y[0]
    assert a.y[1] == 1, "alone in its row, it is in the middle"
    assert ([*(a.x - a.error_x.arrayminus)], [*(a.x + a.error_x.array)]) == ([0.5, -2], [9, 0])
    assert zero.x == (0, 0)
    low, high = figure.layout.xaxis.range
    assert low < -2 < 2 < high < 9, "a wide interval does not press the means together"
    assert figure.layout.yaxis.ticktext == ("x", "y")


SHARES = Trace.from_schedule(schedules.gpipe(2, 3).take(1)).breakdown()


def test_a_bar_for_each_row_stacked_from_0_to_100() -> None:
    figure = breakdown(SHARES, title="GPipe", label="exact")
    ends = [0.0] * len(SHARES)
    for trace in figure.data:
        assert trace.base.tolist() == pytest.approx(ends)
        ends = (trace.base + trace.x).tolist()
    assert ends == pytest.approx([100.0] * len(SHARES))
    assert list(figure.layout.yaxis.ticktext) == ["0", "1", "all"]


def test_parts_bear_their_percent_unless_they_are_thin_and_their_colour() -> None:
    figure = breakdown(SHARES, title="GPipe", label="exact")
    assert figure.layout.title.text == "GPipe (exact)"
    texts = {trace.name: trace.text for trace in figure.data}
    assert (texts["bubble"], texts["imbalance"]) == (("25.0", "25.0", "25.0"), None)
    colors = {trace.name: trace.marker.color for trace in figure.data}
    assert colors["recompute"] == style.OPS["RECOMPUTE"].color
    assert len(set(colors.values())) == len(CATEGORIES)


def test_what_is_no_breakdown_is_refused() -> None:
    with pytest.raises(ValueError, match="lacks the column 'computation'"):
        breakdown(pd.DataFrame({"bubble": [1.0]}), title="GPipe", label="exact")
