"""A figure of one's own is drawn as plotly shows it, or refused by name before hours of training."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure

from pipekit import plots
from pipekit.plots import completion, static

METHODS = ["flush", "2bw", "pipedream"]
ONE: Any = {"title": "t", "label": "measured"}


def panel(figure: go.Figure) -> Axes:
    (axes,) = static.draw(figure).axes
    return axes


def points(axes: Axes) -> list[list[float]]:
    """Return x and y of each point of the first line."""
    found: list[list[float]] = np.asarray(axes.lines[0].get_xydata()).tolist()
    return found


def ticks(axes: Axes) -> list[str]:
    return [tick.get_text() for tick in axes.get_xticklabels()]


def bars(axes: Axes) -> list[tuple[float, float, float, float]]:
    """Return left, right, bottom and top of each bar."""
    boxes = [path.get_extents() for each in axes.collections for path in each.get_paths()]
    return [(box.x0, box.x1, box.y0, box.y1) for box in boxes]


def test_a_scatter_that_says_nothing_has_plotlys_line_and_markers() -> None:
    axes = panel(go.Figure(go.Scatter(y=[3, 1, 2])))
    assert points(axes) == [[0, 3], [1, 1], [2, 2]]
    (line,) = axes.lines
    assert (line.get_marker(), line.get_linestyle()) == ("o", "-")
    (line,) = panel(go.Figure(go.Scatter(y=list(range(30))))).lines
    assert line.get_marker() == "None"


@settings(max_examples=4)
@given(st.lists(st.sampled_from("abcdef"), min_size=1, max_size=12))
def test_each_name_on_an_axis_is_one_tick_where_its_points_are(names: list[str]) -> None:
    axes = panel(go.Figure(go.Scatter(x=names, y=list(range(len(names))), mode="markers")))
    assert ticks(axes) == list(dict.fromkeys(names))
    assert [ticks(axes)[int(x)] for x, _ in points(axes)] == names


def test_bars_stand_beside_one_another_or_on_one_another_and_on_zero() -> None:
    both = [go.Bar(x=METHODS, y=[3, 4, 5]), go.Bar(x=METHODS, y=[1, 2, 3])]
    beside = bars(panel(go.Figure(both)))
    assert [bar[2:] for bar in beside] == [(0, 3), (0, 4), (0, 5), (0, 1), (0, 2), (0, 3)]
    assert [bar[1] for bar in beside[:3]] == pytest.approx([bar[0] for bar in beside[3:]])
    stacked = bars(panel(go.Figure(both, go.Layout(barmode="stack"))))
    assert [bar[2:] for bar in stacked[3:]] == [(3, 4), (4, 6), (5, 8)]
    lying = go.Bar(y=METHODS, x=[3, 4, 5], orientation="h")
    assert [bar[:2] for bar in bars(panel(go.Figure(lying)))] == [(0, 3), (0, 4), (0, 5)]


@pytest.mark.parametrize("letter", "xy")
def test_error_bars_go_from_the_least_to_the_most(letter: str) -> None:
    error: Any = {f"error_{letter}": {"array": [1, 2], "arrayminus": [3, 4]}}
    axes = panel(go.Figure(go.Scatter(x=[10, 20], y=[10, 20], **error)))
    (bars,) = (each for each in axes.collections if isinstance(each, LineCollection))
    column = "xy".index(letter)
    assert [line[:, column].tolist() for line in bars.get_segments()] == [[7, 11], [16, 22]]


@pytest.mark.parametrize("orientation", ["h", "v"])
def test_a_long_legend_is_within_the_picture(orientation: str) -> None:
    named = [go.Scatter(y=[k, k], name=f"a series with a rather long name, {k}") for k in range(9)]
    canvas: Figure = static.draw(go.Figure(named, go.Layout(legend={"orientation": orientation})))
    renderer = FigureCanvasAgg(canvas).get_renderer()  # type: ignore[no-untyped-call]
    (legend,) = canvas.legends
    box, axis = legend.get_window_extent(renderer), canvas.axes[0].get_window_extent(renderer)
    assert box.x0 >= 0
    assert box.x1 <= canvas.bbox.width
    assert box.y1 < axis.y0 or box.x0 >= axis.x1  # and not on the panel
    assert len(legend.get_texts()) == 9


@pytest.mark.parametrize(
    ("figure", "named"),
    [
        (go.Figure(go.Pie(values=[1])), "a trace of type 'pie'"),
        (go.Figure(go.Scatter(x=pd.to_datetime(["2026-01-01"]), y=[1])), "dates on x"),
        (go.Figure(go.Bar(y=[1], error_y={"array": [1]})), "error bars on bars"),
        (go.Figure(go.Scatter(y=[1], mode="text")), "mode 'text'"),
        (go.Figure(go.Scatter(y=[1], marker={"symbol": "star"})), "the marker 'star'"),
        (go.Figure(go.Scatter(y=[1], marker={"size": [3]})), "markers of several sizes"),
        (go.Figure(go.Scatter(y=[1])).add_hline(1), "the layout's shapes"),
    ],
)
def test_what_cannot_be_drawn_is_refused_by_name_and_drawn_by_kaleido(
    figure: go.Figure, named: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(completion, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=named):
        plots.check(figure)
    monkeypatch.setattr(completion, "find_spec", lambda name: name == "kaleido")
    plots.check(figure)
    drawn: list[Path] = []
    monkeypatch.setattr(go.Figure, "write_image", lambda self, path: drawn.append(path))
    assert plots.save(figure, tmp_path / "a", pd.DataFrame())["svg"] == drawn[0]


def test_points_take_names() -> None:
    frame = pd.DataFrame({"method": METHODS * 2, "loss": [5.0, 6, 7, 7, 8, 9], "of": ["a"] * 6})
    assert ticks(panel(plots.points(frame, "method", "loss", "of", **ONE))) == METHODS
