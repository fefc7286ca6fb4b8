import pandas as pd
import pytest
from matplotlib.colors import to_rgba
from matplotlib.patches import Polygon

from pipekit.plots import bands, static

RUNS = pd.DataFrame(
    [
        (m, step, base + seed)
        for m, base in [("a", 1.0), ("b", 5.0)]
        for seed in (0, 3, 9)
        for step in (0, 1)
    ],
    columns=["method", "step", "loss"],
)


def test_each_series_is_its_mean_in_a_band_from_least_to_greatest() -> None:
    figure = bands(RUNS, "step", "loss", "method", title="t", label="measured")
    named = {trace.name: list(trace.y) for trace in figure.data if trace.showlegend is not False}
    assert named == {"a": [5.0, 5.0], "b": [9.0, 9.0]}
    outlines = [list(trace.y) for trace in figure.data if trace.showlegend is False]
    assert outlines == [[10.0, 10.0, 1.0, 1.0], [14.0, 14.0, 5.0, 5.0]]
    together = [trace.legendgroup for trace in figure.data]
    assert together == ["a", "b", "a", "b"], "a band is hidden with its curve"


def test_lines_are_seen_through_the_bands_also_statically() -> None:
    figure = bands(RUNS, "step", "loss", "method", title="t", label="measured")
    (axes,) = static.draw(figure).axes
    drawn = [patch for patch in axes.patches if isinstance(patch, Polygon)]
    assert [to_rgba(patch.get_facecolor())[3] for patch in drawn] == pytest.approx([0.14, 0.14])
    assert [list(patch.get_xy()[:, 1]) for patch in drawn] == [
        [10.0, 10.0, 1.0, 1.0, 10.0],
        [14.0, 14.0, 5.0, 5.0, 14.0],
    ]
    assert len(axes.lines) == 2


def test_missing_columns_are_named() -> None:
    with pytest.raises(ValueError, match="lacks the column 'loss'"):
        bands(RUNS.drop(columns="loss"), "step", "loss", "method", title="t", label="measured")
