"""Static pictures have what the live figures have, and files what was drawn."""

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import pytest
from matplotlib.collections import PolyCollection
from matplotlib.colors import to_hex

from pipekit import schedules
from pipekit.plots import compare, curves, memory, save, static, style, svg, timeline
from pipekit.plots.static import draw
from pipekit.schedules import Op, gpipe
from pipekit.schedules.ops import PASSES
from pipekit.traces import Trace
from pipekit.traces.memory import PARTS, Memory


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


SCHEDULE = schedules.two_bw(4, 4).take(4)
FRAME = Trace.from_schedule(SCHEDULE).frame


def words(svg: Path) -> list[str]:
    """Return the texts of an SVG in which text is text."""
    root = ElementTree.parse(svg).getroot()
    return ["".join(node.itertext()) for node in root.iter("{http://www.w3.org/2000/svg}text")]


def test_csv_reads_back_as_the_data(tmp_path: Path) -> None:
    paths = save(timeline(SCHEDULE), tmp_path / "2bw", FRAME)
    pd.testing.assert_frame_equal(pd.read_csv(paths["csv"]), FRAME)


def test_the_svg_holds_title_workers_microbatches_and_versions_as_text(tmp_path: Path) -> None:
    found = words(save(timeline(SCHEDULE, versions=True), tmp_path / "2bw", FRAME)["svg"])
    assert (
        "PipeDream-2BW: bubble 15.8 % of makespan, 8.6 % of spans, 0.0 % steady, 57 slots (exact)"
        in found
    )
    assert {"worker 0", "worker 3", "time (slots)", "forward", "update"} <= set(found)
    text = " ".join(found)
    assert all(f"{k}" in text for k in range(16))
    assert {"v0", "v1", "v2"} <= set(text.replace("\n", " ").split())


def test_a_figure_saved_again_gives_the_same_bytes(tmp_path: Path) -> None:
    frame = pd.DataFrame({"method": ["a", "b"], "epoch": [0, 0], "loss": [1.0, 2.0]})
    held = pd.DataFrame([[0, 0.0, 1, 1, 1, 1, 1]], columns=["worker", "time_s", *PARTS])
    figures = [
        timeline(schedules.two_bw(2, 2).take(1)),
        curves(frame, "epoch", "loss", "method", title="Loss", label="measured"),
        memory(Memory(held, "measured"), capacity=8),
    ]
    for figure in figures:
        once = save(figure, tmp_path / "figure", frame)["svg"].read_bytes()
        assert save(figure, tmp_path / "figure", FRAME)["svg"].read_bytes() == once
        assert b"<dc:date>" not in once


def test_every_event_has_a_look_of_its_own() -> None:
    assert set(style.OPS) == {op.name for op in (*PASSES, Op.UPDATE, Op.RECOMPUTE)}
    assert len({look.color for look in style.OPS.values()}) == len(style.OPS)


def test_no_series_has_the_colour_of_an_op_or_part() -> None:
    looks = [*style.OPS.values(), *style.PARTS.values()]
    assert not set(style.SERIES_COLORS) & {look.color for look in looks}


@pytest.mark.parametrize(("look", "second"), [(style.line, "dash"), (style.marker, "symbol")])
def test_seven_series_have_seven_colours_and_neighbours_differ_also_in_greyscale(
    look: Callable[[int], dict[str, Any]], second: str
) -> None:
    looks = [look(i) for i in range(36)]
    assert len({each["color"] for each in looks[:7]}) == 7
    assert len({(each["color"], each[second]) for each in looks[:35]}) == 35
    assert all(a[second] != b[second] for a, b in pairwise(looks))


def test_a_phone_shows_a_title_in_lines_and_a_static_picture_in_one() -> None:
    figure = timeline(gpipe(4, 4).take(1), title="a name of some length in front of all numbers")
    lines = figure.layout.title.text.split(style.BREAK)
    assert len(lines) > 2
    assert max(map(len, lines)) <= style.TITLE_CHARACTERS
    short = timeline(gpipe(4, 4).take(1), title="a")
    heights, margins = ([each.layout[n] for each in (figure, short)] for n in ("height", "margin"))
    assert heights[0] - heights[1] == margins[0].t - margins[1].t > 0
    pairs = [compare(*[gpipe(4, 4).take(1)] * 2, titles=[name] * 2) for name in ("a long one", "a")]
    for one, other in ((figure, short), pairs):
        assert draw(one).get_figheight() == draw(other).get_figheight()
    assert " ".join(lines) in svg(figure)
