from itertools import pairwise

from pipekit.plots import style
from pipekit.schedules import Op
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


def test_seven_markers_have_seven_colours_and_neighbours_differ_also_in_greyscale() -> None:
    markers = [style.marker(i) for i in range(36)]
    assert len({marker["color"] for marker in markers[:7]}) == 7
    assert len({(marker["color"], marker["symbol"]) for marker in markers[:35]}) == 35
    assert all(a["symbol"] != b["symbol"] for a, b in pairwise(markers))
