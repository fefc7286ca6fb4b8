"""Idle time in timelines: where it is, how it looks, and what hovering says."""

from dataclasses import replace

from pipekit import schedules, simulate
from pipekit.clusters import flat
from pipekit.plots.timelines.idle import idle
from pipekit.profiling import LayerProfile, Profile
from pipekit.traces import Trace


def test_gaps_are_drawn_by_what_is_waited_for() -> None:
    layers = (LayerProfile("layer", 1, 1, 2.0),) * 2
    trace = simulate(schedules.gpipe(2, 1).take(1), Profile(layers), None, flat(2, 1))
    drawn = {bar.name: bar for bar in idle(trace, 10, "ds")}
    assert list(drawn) == ["idle", "idle: why", "waits for a pass", "waits for a message"]
    background, ends, waits, message = drawn.values()
    assert (list(background.base), list(background.x)) == ([0, 0], [80, 80])
    assert (list(ends.y), list(ends.base), list(ends.x)) == ([1, 1], [0, 50], [30, 30])
    assert (list(waits.y), list(waits.base), list(waits.x)) == ([0], [10], [40])
    assert (list(message.y), list(message.base), list(message.x)) == ([0], [50], [20])
    looks = {(bar.marker.color, bar.marker.pattern.shape) for bar in (background, waits, message)}
    assert len(looks) == 3


def test_hovering_says_who_waits_for_whom() -> None:
    waits = idle(Trace.from_schedule(schedules.gpipe(2, 1).take(1)), 1, "slots")[-1]
    assert waits.customdata[0].tolist() == [
        0,
        1,
        4,
        "gradient: the stage behind has not computed the gradient yet"
        "<br>before B0 of stage 0, which needs B0 of stage 1 on worker 1"
        "<br>that waited for F0 of stage 1 on worker 1",
    ]


def test_gaps_too_short_to_be_seen_are_left_out() -> None:
    trace = Trace.from_schedule(schedules.gpipe(1, 2).take(1))
    frame = trace.frame.copy()
    frame.loc[frame.index[1:], ["start_s", "end_s"]] += 1e-4
    assert len(idle(replace(trace, frame=frame), 1, "s")) == 1
    frame.loc[frame.index[1:], ["start_s", "end_s"]] += 1
    assert len(idle(replace(trace, frame=frame), 1, "s")) == 2


def test_a_slice_of_a_run_has_its_background_only() -> None:
    trace = Trace.from_schedule(schedules.gpipe(2, 2).take(1))
    (background,) = idle(replace(trace, frame=trace.frame.query("start_s >= 3")), 1, "slots")
    assert background.name == "idle"
