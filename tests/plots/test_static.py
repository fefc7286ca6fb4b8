import numpy as np
import plotly.graph_objects as go
import pytest
from matplotlib.collections import PolyCollection
from matplotlib.colors import to_hex

from pipekit import schedules
from pipekit.plots import compare, static, style, timeline
from pipekit.traces import Trace


def test_bars_stand_where_the_plotly_figure_has_them() -> None:
    live = timeline(schedules.pipedream(3).take(5))
    (axes,) = static.draw(live).axes
    assert (axes.get_xlim(), axes.get_ylim()) == (live.layout.xaxis.range, live.layout.yaxis.range)
    drawn = [c for c in axes.collections if isinstance(c, PolyCollection)]
    for bar, collection in zip(live.data, drawn, strict=True):
        corners = [np.asarray(path.vertices) for path in collection.get_paths()]
        assert [c[:, 0].min() for c in corners] == bar.base.tolist()
        assert [c[:, 0].max() for c in corners] == (bar.base + bar.x).tolist()
        assert [round(c[:, 1].mean()) for c in corners] == bar.y.tolist()


def test_colours_are_those_of_the_plotly_figure() -> None:
    (axes,) = static.draw(timeline(schedules.gpipe(2, 2).take(1))).axes
    colors = [
        to_hex(np.asarray(collection.get_facecolor())[0]).upper()
        for collection in axes.collections[-3:]
    ]
    assert colors == [style.OPS[op].color for op in ("FORWARD", "BACKWARD", "UPDATE")]


def test_numbers_that_do_not_fit_are_left_out_for_all_of_an_op() -> None:
    (axes,) = static.draw(timeline(schedules.gpipe(2, 2).take(1))).axes
    assert sorted(text.get_text() for text in axes.texts) == sorted("01" * 4)
    (axes,) = static.draw(timeline(schedules.pipedream(2).take(200))).axes
    assert not axes.texts


def test_panels_titles_and_the_legend_are_all_there() -> None:
    sources = schedules.gpipe(2, 2).take(1), Trace.from_schedule(schedules.flush(2, 2).take(1))
    canvas = static.draw(compare(*sources))
    assert len(canvas.axes) == 2
    assert [text.get_text().partition(":")[0] for text in canvas.texts] == [
        "GPipe",
        "PipeDream-Flush",
    ]
    (legend,) = canvas.legends
    ops = ["forward", "backward", "update"]
    idle = ["idle", "waits for a pass"]
    assert [t.get_text() for t in legend.get_texts()] == [*ops, *idle]


@pytest.mark.parametrize("page", [1.0, 0.08], ids=["light", "dark"])
def test_the_pattern_of_a_gap_is_seen_on_light_and_on_dark_pages(page: float) -> None:
    look = style.WAITS_FOR_PASS
    filled = static._filled(look.color, go.bar.marker.Pattern(style.pattern(look)))
    idle, _, _, strength = static._rgba(style.IDLE)
    page += strength * (idle - page)
    grey, _, _, opacity = filled["facecolor"]
    black, _, _, strength = filled["hatchcolor"]
    line = grey + strength * (black - grey)  # an SVG's shade and its lines are faded together
    shades = [0.05 + (page + opacity * (each - page)) ** 2.2 for each in (grey, line)]
    assert max(shades) / min(shades) >= 1.5  # WCAG 2's contrast
