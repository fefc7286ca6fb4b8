"""The picture that plays shows each event when it runs."""

from xml.etree import ElementTree

import pytest

from pipekit import plots, schedules
from pipekit.plots.moving import EDGE_PX, LEFT_PX, PLAY_S, REST_S, WIDTH_PX
from pipekit.traces import Trace

SVG = "{http://www.w3.org/2000/svg}"


def test_each_pass_grows_from_its_start_to_its_end() -> None:
    schedule = schedules.gpipe(2, 2).take(1)
    trace = Trace.from_schedule(schedule)
    root = ElementTree.fromstring(plots.moving(schedule))
    grown = [rect for rect in root.iter(f"{SVG}rect") if rect.find(f"{SVG}animate") is not None]
    assert len(grown) == len(trace.frame)
    slot = (WIDTH_PX - EDGE_PX - LEFT_PX) / trace.makespan_s
    playing = PLAY_S / (PLAY_S + REST_S)
    for rect, event in zip(grown, trace.frame.itertuples(), strict=True):
        assert float(rect.attrib["x"]) == pytest.approx(LEFT_PX + event.start_s * slot, abs=0.1)
        (animation,) = rect.iter(f"{SVG}animate")
        times = [float(time) for time in animation.attrib["keyTimes"].split(";")]
        assert times[0] == 0
        assert times[-1] == 1
        assert times[1:3] == pytest.approx(
            [event.start_s / trace.makespan_s * playing, event.end_s / trace.makespan_s * playing],
            abs=1e-3,
        )


def times(element: ElementTree.Element) -> list[float]:
    """Return the two inner key times of an element's animation."""
    (animation,) = element.iter(f"{SVG}animate")
    return [float(time) for time in animation.attrib["keyTimes"].split(";")][1:3]


def test_methods_share_one_clock_and_end_when_they_end() -> None:
    short, long = schedules.gpipe(2, 2).take(1), schedules.gpipe(2, 4).take(1)
    text = plots.moving(short, long, titles=["short", "long"])
    root = ElementTree.fromstring(text)
    idle = [
        float(rect.attrib["width"])
        for rect in root.iter(f"{SVG}rect")
        if rect.find(f"{SVG}animate") is None
    ]
    whole = WIDTH_PX - EDGE_PX - LEFT_PX
    assert idle == pytest.approx([whole * 9 / 15] * 2 + [whole] * 2, abs=0.1)
    assert "short: bubble" in text


def test_the_last_update_is_within_the_view() -> None:
    root = ElementTree.fromstring(plots.moving(schedules.flush(4, 8).take(2)))
    _, _, width, height = map(float, root.attrib["viewBox"].split())
    for rect in root.iter(f"{SVG}rect"):
        line = float(rect.get("stroke-width", 0)) / 2
        assert float(rect.attrib["x"]) + float(rect.attrib["width"]) + line <= width
        assert float(rect.attrib["y"]) + float(rect.attrib["height"]) <= height
