from itertools import pairwise

from pipekit.plots import style, svg, timeline
from pipekit.plots.static import draw
from pipekit.schedules import Op, gpipe
from pipekit.schedules.ops import PASSES


def test_every_event_has_a_look_of_its_own() -> None:
    assert set(style.OPS) == {op.name for op in (*PASSES, Op.UPDATE, Op.RECOMPUTE)}
    assert len({look.color for look in style.OPS.values()}) == len(style.OPS)


def test_no_series_has_the_colour_of_an_op_or_part() -> None:
    looks = [*style.OPS.values(), *style.PARTS.values()]
    assert not set(style.SERIES_COLORS) & {look.color for look in looks}


def test_seven_lines_have_seven_colours_and_neighbours_differ_also_in_greyscale() -> None:
    lines = [style.line(i) for i in range(36)]
    assert len({line["color"] for line in lines[:7]}) == 7
    assert len({(line["color"], line["dash"]) for line in lines[:35]}) == 35
    assert all(a["dash"] != b["dash"] for a, b in pairwise(lines))


def test_a_phone_shows_a_title_in_lines_and_a_static_picture_in_one() -> None:
    figure = timeline(gpipe(4, 4).take(1), title="a name of some length in front of all numbers")
    lines = figure.layout.title.text.split(style.BREAK)
    assert len(lines) > 2
    assert max(map(len, lines)) <= style.TITLE_CHARACTERS
    short = timeline(gpipe(4, 4).take(1), title="a")
    heights, margins = ([each.layout[n] for each in (figure, short)] for n in ("height", "margin"))
    assert heights[0] - heights[1] == margins[0].t - margins[1].t > 0
    height = [draw(each).get_figheight() for each in (figure, short)]
    assert height[0] == height[1]
    assert " ".join(lines) in svg(figure)


def test_seven_markers_have_seven_colours_and_neighbours_differ_also_in_greyscale() -> None:
    markers = [style.marker(i) for i in range(36)]
    assert len({marker["color"] for marker in markers[:7]}) == 7
    assert len({(marker["color"], marker["symbol"]) for marker in markers[:35]}) == 35
    assert all(a["symbol"] != b["symbol"] for a, b in pairwise(markers))
