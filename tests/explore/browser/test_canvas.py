"""A canvas's state: a new run is shown whole, and explained when the browser asks for it."""

from pipekit import Trace, schedules
from pipekit.explore import TimelineCanvas


def test_a_new_picture_is_shown_whole() -> None:
    canvas = TimelineCanvas()
    canvas.view, canvas.until = [1.0, 2.0], 1.5
    canvas.show(Trace.from_schedule(schedules.two_bw(2, 2).take(3)))
    assert (canvas.view, canvas.until) == ([], -1)
    assert canvas.picture["title"].startswith("PipeDream-2BW")


def test_it_is_explained_once_it_is_asked_why_and_anew_for_another_run() -> None:
    canvas = TimelineCanvas()
    canvas._handle_custom_msg("why", [])
    assert canvas.why == {}, "there is nothing yet"
    for method in (schedules.gpipe, schedules.flush):
        canvas.show(Trace.from_schedule(method(3, 4)))
        assert canvas.why == {}
        canvas._handle_custom_msg("something else", [])
        assert canvas.why == {}
        canvas._handle_custom_msg("why", [])
        assert canvas.why["shares"].startswith("idle: ")
