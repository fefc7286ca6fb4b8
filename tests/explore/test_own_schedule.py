import ipywidgets as widgets
import pytest

from pipekit.explore.own_schedule import (
    PICTURE,
    OwnSchedule,
    faults,
    marked,
    see,
    text_area,
    trained,
)
from pipekit.schedules import ScheduleError, check, interleaved, parse, pipedream, v_half
from pipekit.traces import Trace
from tests.explore.inside import inside

MINE = str(pipedream(2).take(3))
STUCK = "worker 0 | B0 F0^"
SOUND = """\
worker 0 | F0 F1 .  .  B0 -  B1 -^
worker 1 | .  F0 B0 -  F1 B1 -^"""


def test_a_picture_is_drawn_and_simulated() -> None:
    view = see(MINE)
    drawn, simulated = view.timelines
    assert drawn.trace.frame.equals(Trace.from_schedule(parse(MINE)).frame)
    assert (drawn.trace.label, simulated.trace.label) == ("exact", "simulated")
    assert len(simulated.trace.frame) == len(drawn.trace.frame)
    assert "weight slots, a worker: 2 1; microbatches in flight: 2 1 (exact)" in view.text


@pytest.mark.parametrize(
    "picture", [MINE, str(interleaved(4, 2, workers=2).take(1)), str(v_half(4, 2).take(1))]
)
def test_the_engine_trains_with_it(picture: str) -> None:
    view = trained(picture)
    executed = view.timelines[-1].trace
    assert executed.label == "measured"
    order = ["worker", "op", "microbatch", "version"]
    expected = Trace.from_schedule(parse(picture)).frame[order]
    assert executed.frame[order].reset_index(drop=True).equals(expected.reset_index(drop=True))
    losses = view.plots["loss"].data["loss"]
    assert losses.iloc[-1] < losses.iloc[0]


def test_an_error_is_marked_and_nothing_can_be_trained_until_it_is_mended() -> None:
    area = text_area()
    live = OwnSchedule(see, {"picture": area}, {})
    (button,), texts = inside(live, widgets.Button), inside(live, widgets.HTML)
    area.value = STUCK
    assert button.disabled
    assert any("<mark>B0</mark> <mark>F0</mark>^" in html.value for html in texts)
    area.value = MINE
    assert not button.disabled
    assert not any("<mark>" in html.value for html in texts)


def test_the_first_update_may_be_left_out_and_the_last_is_named_as_pictures_have_it() -> None:
    head, _, rest = PICTURE.partition("worker 0")
    row, _, others = rest.partition("\n")
    first = row.replace("-^", "- ", 1)
    assert see(f"{head}worker 0{first}\n{others}").timelines
    last = row[: row.rindex("^")]
    with pytest.raises(ValueError, match=r"no U2 of stage 0, in a picture a \^ behind its last"):
        see(f"{head}worker 0{last}\n{others}")


def cells(picture: str) -> list[str]:
    """Return the cells that are marked in a picture that is refused."""
    with pytest.raises(ScheduleError) as refused:
        check(parse(picture))
    return [picture[start:stop] for start, stop in faults(picture, refused.value)]


@pytest.mark.parametrize(
    ("old", "new", "marks"),
    [
        ("F1 B1 -^", "B1 F1 -^", ["B1", "B1", "F1"]),  # who waits in what, and for what
        ("B0 -  F1", "Bx -  F1", ["Bx"]),
        ("F0 F1", "F1 F1", ["F1", "F1"]),
        ("B1 -^\nw", "B1 -\nw", ["worker 0"]),  # what is missing has no cell: the row's name
        ("F0 B0", "F0 B0:1", ["B0:1", "^"]),
        ("worker 1 |", "worker 1", ["worker 1 .  F0 B0 -  F1 B1 -^"]),
        ("B0 -  F1", "B0 -  Fx", ["Fx"]),
        ("F0 B0 -  F1 B1", "F0 I0 W0 F1 I1", ["worker 1"]),  # no W1
        ("F0 B0 -  F1 B1", "F0 B0 I0 F1 B1", ["B0", "I0"]),
        ("F0 B0 -  F1 B1", "F0 I0 W0 F1 W1 I1", ["B1", "W1", "I1"]),
    ],
)
def test_the_cells_are_marked_that_the_error_names(old: str, new: str, marks: list[str]) -> None:
    assert cells(SOUND.replace(old, new)) == marks


def test_of_equal_tasks_only_that_of_the_worker_at_fault_is_marked() -> None:
    picture = "worker 0 | F0 B0^\nworker 1 stage 0 | ^0"
    with pytest.raises(ScheduleError, match="worker 1 has U1 of stage 0 and no forward") as error:
        check(parse(picture))
    assert [(a, picture[a:b]) for a, b in faults(picture, error.value)] == [
        (picture.rindex("^"), "^0")
    ]


def test_marks_are_html_and_what_they_mark_is_escaped() -> None:
    picture = "worker 0 | F0 <b>"
    with pytest.raises(ScheduleError) as error:
        parse(picture)
    assert marked(picture, error.value) == "worker 0 | F0 <mark>&lt;b&gt;</mark>"
