import ipywidgets as widgets
import pytest

from pipekit.explore.own_schedule import PICTURE, OwnSchedule, see, text_area, trained
from pipekit.schedules import interleaved, parse, pipedream, v_half
from pipekit.traces import Trace
from tests.explore.inside import inside

MINE = str(pipedream(2).take(3))
STUCK = "worker 0 | B0 F0^"


def test_a_picture_is_drawn() -> None:
    view = see(MINE)
    (drawn,) = view.timelines
    assert drawn.trace.frame.equals(Trace.from_schedule(parse(MINE)).frame)
    assert drawn.trace.label == "exact"
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


def test_an_error_is_said_and_nothing_can_be_trained_until_it_is_mended() -> None:
    area = text_area()
    live = OwnSchedule(see, {"picture": area}, {})
    (button,), texts = inside(live, widgets.Button), inside(live, widgets.HTML)
    area.value = STUCK
    assert button.disabled
    assert any("waits in B0 of stage 0 for F0" in html.value for html in texts)
    area.value = MINE
    assert not button.disabled
    assert not any("waits in" in html.value for html in texts)


def test_the_first_update_may_be_left_out_and_the_last_is_named_as_pictures_have_it() -> None:
    head, _, rest = PICTURE.partition("worker 0")
    row, _, others = rest.partition("\n")
    first = row.replace("-^", "- ", 1)
    assert see(f"{head}worker 0{first}\n{others}").timelines
    last = row[: row.rindex("^")]
    with pytest.raises(ValueError, match=r"no U2 of stage 0, in a picture a \^ behind its last"):
        see(f"{head}worker 0{last}\n{others}")
