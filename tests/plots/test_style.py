from itertools import pairwise

from pipekit.plots import style
from pipekit.schedules import Op
from pipekit.traces import RECOMPUTE


def test_every_event_has_a_look_of_its_own() -> None:
    assert set(style.OPS) == {op.name for op in Op} | {RECOMPUTE}
    assert len({look.color for look in style.OPS.values()}) == len(style.OPS)


def test_no_series_has_the_colour_of_an_op() -> None:
    assert not set(style.SERIES_COLORS) & {look.color for look in style.OPS.values()}


def test_the_first_20_series_differ_and_neighbours_differ_also_in_greyscale() -> None:
    lines = [style.series(i) for i in range(21)]
    assert len({(line["color"], line["dash"]) for line in lines[:20]}) == 20
    assert all(a["dash"] != b["dash"] for a, b in pairwise(lines))
