from typing import Any

import numpy as np
import pandas as pd
import pytest

from pipekit.plots import points, static, style

FRAME = pd.DataFrame(
    {
        "method": ["b", "a", "b", "a"],
        "predicted": [1.0, 20.0, 3.0, 4.0],
        "found": [1.5, 18.0, 2.5, 5.0],
    }
)
WORDS: dict[str, Any] = {"title": "Time of a batch", "label": "emulated"}


def test_each_series_has_its_colour_and_symbol_in_the_order_of_the_frame() -> None:
    figure = points(FRAME, "predicted", "found", "method", **WORDS)
    assert [trace.name for trace in figure.data] == ["b", "a"]
    assert [trace.mode for trace in figure.data] == ["markers"] * 2
    assert figure.data[1].y.tolist() == [18.0, 5.0]
    assert [(trace.marker.color, trace.marker.symbol) for trace in figure.data] == [
        (style.marker(i)["color"], style.marker(i)["symbol"]) for i in range(2)
    ]


def test_title_carries_the_label_and_axes_their_units() -> None:
    layout = points(FRAME, "predicted", "found", "method", x_title="predicted (s)", **WORDS).layout
    assert layout.title.text == "Time of a batch (emulated)"
    assert (layout.xaxis.title.text, layout.yaxis.title.text) == ("predicted (s)", "found")


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


def test_logarithmic_axes_are_so_in_the_static_picture_too() -> None:
    live = points(FRAME, "predicted", "found", "method", log=True, **WORDS)
    assert (live.layout.xaxis.type, live.layout.yaxis.type) == ("log", "log")
    (axes,) = static.draw(live).axes
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
    assert np.log10(axes.get_xlim()) == pytest.approx(live.layout.xaxis.range)
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["1", "2", "5", "10", "20"]


@pytest.mark.parametrize(
    ("values", "ticks"),
    [
        ([0.01, 100.0], ["0.01", "0.1", "1", "10", "100"]),
        ([20.0, 300.0], ["20", "50", "100", "200"]),
        ([3.0, 4.0], ["3", "3.25", "3.5", "3.75", "4"]),
    ],
)
def test_a_logarithmic_axis_has_ticks_however_short_it_is(
    values: list[float], ticks: list[str]
) -> None:
    frame = pd.DataFrame({"method": "a", "x": values, "y": values})
    figure = points(frame, "x", "y", "method", log=True, **WORDS)
    assert [*figure.layout.xaxis.ticktext] == ticks


def test_one_point_is_drawn_in_the_middle() -> None:
    low, high = points(FRAME.iloc[:1], "predicted", "found", "method", **WORDS).layout.xaxis.range
    assert (low + high) / 2 == 1.0
    assert low < high


def test_missing_columns_empty_frames_and_logarithms_of_0_are_refused() -> None:
    with pytest.raises(ValueError, match="lacks the column 'time'; it has"):
        points(FRAME, "time", "found", "method", **WORDS)
    with pytest.raises(ValueError, match="no rows"):
        points(FRAME.iloc[:0], "predicted", "found", "method", **WORDS)
    with pytest.raises(ValueError, match="needs positive numbers, not 0 in 'found'"):
        points(FRAME.assign(found=0.0), "predicted", "found", "method", log=True, **WORDS)
