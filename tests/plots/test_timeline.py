"""Timelines, still and playing: events and idle time, where they are drawn, what hovering says."""

from dataclasses import replace
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pytest

from pipekit import plots, schedules, simulate
from pipekit.clusters import flat
from pipekit.plots import compare, style, timeline
from pipekit.plots.events import bars, event_styles, idle
from pipekit.plots.moving import EDGE_PX, LEFT_PX, PLAY_S, REST_S, WIDTH_PX
from pipekit.plots.timeline import MOST_EVENTS
from pipekit.profiling import LayerProfile, Profile
from pipekit.schedules import Schedule
from pipekit.traces import Trace


def measured(scale: float = 1.0) -> Trace:
    rows = [
        (0, 0, "FORWARD", 0, 0, 0.0, 0.25 * scale, 64),
        (0, 0, "RECOMPUTE", 0, 0, 0.25 * scale, 0.5 * scale, 0),
        (1, 1, "BACKWARD", 0, 0, 0.5 * scale, 1.5 * scale, 64),
        (1, 1, "UPDATE", 0, 1, 1.5 * scale, 2.0 * scale, 0),
    ]
    columns = ["worker", "stage", "op", "microbatch", "version", "start_s", "end_s", "bytes"]
    return Trace(pd.DataFrame(rows, columns=columns), "measured", "GPipe", 2)


def bars_of(figure: Any) -> dict[str, Any]:
    return {bar.name: bar for bar in figure.data if not is_gap(bar)}


def is_gap(bar: Any) -> bool:
    return str(bar.name).startswith(("idle: why", "waits for"))  # test_events.py


def test_every_event_is_one_bar_where_the_table_has_it() -> None:
    schedule = schedules.two_bw(4, 4).take(4)
    frame = Trace.from_schedule(schedule).frame
    bars = bars_of(timeline(schedule))
    assert bars.keys() == {"idle", "forward", "backward", "update"}
    for op in ("FORWARD", "BACKWARD", "UPDATE"):
        rows, bar = frame[frame["op"] == op], bars[style.OPS[op].name]
        np.testing.assert_array_equal(bar.y, rows["worker"])
        np.testing.assert_array_equal(bar.base, rows["start_s"])
        np.testing.assert_array_equal(bar.base + bar.x, rows["end_s"])


def test_bars_carry_microbatches_and_on_request_versions() -> None:
    schedule = schedules.two_bw(2, 2).take(3)
    assert bars_of(timeline(schedule))["forward"].text[:6] == tuple("012345")
    text = bars_of(timeline(schedule, versions=True))["forward"].text
    assert text[:6] == ("0<br>v0", "1<br>v0", "2<br>v0", "3<br>v0", "4<br>v1", "5<br>v1")


def test_an_op_looks_the_same_in_every_timeline_and_differs_without_colour() -> None:
    one = bars_of(timeline(schedules.gpipe(2, 2).take(1)))
    other = bars_of(timeline(measured()))
    for name in ("forward", "backward", "update"):
        assert one[name].marker == other[name].marker
    patterns = [other[name].marker.pattern.shape for name in ("forward", "backward", "recompute")]
    assert len(set(patterns)) == 3


def test_the_title_states_bubble_makespan_unit_and_label() -> None:
    # (K-1)/(T+K-1) = 3/7 (GPipe, section 3.2)
    text = style.whole(timeline(schedules.gpipe(4, 4).take(1)).layout.title.text)
    assert text == "GPipe: bubble 42.9 % of makespan, 27.3 % of spans, 21 slots (exact)"
    text = style.whole(timeline(measured(), title="GPipe on 2 cores").layout.title.text)
    assert text == "GPipe on 2 cores: bubble 50.0 % of makespan, 0.0 % of spans, 2 s (measured)"


@pytest.mark.parametrize(
    ("scale", "unit", "makespan"), [(1, "s", 2), (1e-3, "ms", 2), (1e-6, "µs", 2), (0.1, "ms", 200)]
)
def test_seconds_are_shown_in_a_readable_unit(scale: float, unit: str, makespan: float) -> None:
    figure = timeline(measured(scale))
    assert figure.layout.xaxis.title.text == f"time ({unit})"
    assert f"{makespan} {unit} (measured)" in style.whole(figure.layout.title.text)
    assert figure.data[0].x[0] == pytest.approx(makespan)


def test_a_timeline_without_events_is_refused() -> None:
    trace = measured()
    with pytest.raises(ValueError, match="'GPipe' has no events to draw"):
        timeline(replace(trace, frame=trace.frame.iloc[:0]))


def test_too_many_events_are_refused_with_the_remedy() -> None:
    trace = measured()
    frame = pd.concat([trace.frame] * (MOST_EVENTS // 4 + 1))
    with pytest.raises(ValueError, match=r"at most 20,000 events, not 20,004; .* or a slice: "):
        timeline(replace(trace, frame=frame))


def test_compare_stacks_timelines_with_one_legend() -> None:
    figure = compare(schedules.flush(2, 4).take(1), measured(), titles=["schedule", "run"])
    assert [style.whole(note.text) for note in figure.layout.annotations] == [
        "schedule: bubble 20.0 % of makespan, 11.1 % of spans, 15 slots (exact)",
        "run: bubble 50.0 % of makespan, 0.0 % of spans, 2 s (measured)",
    ]
    shown = [bar.name for bar in figure.data if bar.showlegend]
    ops = ["backward", "forward", "idle", "recompute", "update"]
    assert sorted(shown) == [*ops, "waits for a pass"]
    assert {bar.xaxis for bar in figure.data} == {"x", "x2"}


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


def test_hovering_says_what_is_waited_for() -> None:
    waits = idle(Trace.from_schedule(schedules.gpipe(2, 1).take(1)), 1, "slots")[-1]
    meaning = "gradient: the stage behind has not computed the gradient yet"
    assert waits.customdata[0].tolist() == [0, 1, 4, f"{meaning}<br>before B0 of stage 0"]


def test_hovering_tells_worker_stage_microbatch_version_and_times() -> None:
    trace = Trace.from_schedule(schedules.two_bw(2, 2).take(3))
    by_name = {bar.name: bar for bar in bars(trace, 1, "slots", versions=False)}
    forward, update = by_name["forward"], by_name["update"]
    (event,) = trace.frame.query("worker == 0 and op == 'FORWARD' and microbatch == 4").itertuples()
    assert forward.customdata[4].tolist() == [0, 0, 4, 1, event.start_s, event.end_s]
    assert "reads version" in forward.hovertemplate
    assert "makes version" in update.hovertemplate


def styles_of(schedule: Schedule) -> tuple[list[str], list[tuple[str, int, str]]]:
    """The styles' styles_of, and of each event: op, stage, colour."""
    trace = Trace.from_schedule(schedule)
    found, kinds = event_styles(trace)
    frame = trace.frame
    events = zip(frame["op"], frame["stage"], (found[kind].color for kind in kinds), strict=True)
    return [look.name for look in found], list(events)


def test_with_one_stage_a_worker_it_is_the_op() -> None:
    found, events = styles_of(schedules.flush(3, 2).take(1))
    assert found == ["forward", "backward", "update"]
    assert all(color == style.OPS[op].color for op, _, color in events)


def test_later_stages_of_a_worker_are_lighter_and_updates_come_last() -> None:
    found, events = styles_of(schedules.interleaved(6, 2, workers=2).take(1))
    again = [f"{op}, later stage" for op in ("forward", "backward")]
    assert found == ["forward", "backward", *again, *again, "update"]
    for op, stage, color in events:
        part = 0 if op == "UPDATE" else [0, 0.325, 0.65][stage // 2]
        assert color == style.whiter(style.OPS[op].color, part)


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
        key_times = [float(time) for time in animation.attrib["keyTimes"].split(";")]
        assert key_times[0] == 0
        assert key_times[-1] == 1
        assert key_times[1:3] == pytest.approx(
            [event.start_s / trace.makespan_s * playing, event.end_s / trace.makespan_s * playing],
            abs=1e-3,
        )


def test_methods_share_one_clock_and_end_when_they_end() -> None:
    short, long = schedules.gpipe(2, 2).take(1), schedules.gpipe(2, 4).take(1)
    root = ElementTree.fromstring(plots.moving(short, long))
    idle = [
        float(rect.attrib["width"])
        for rect in root.iter(f"{SVG}rect")
        if rect.find(f"{SVG}animate") is None
    ]
    whole = WIDTH_PX - EDGE_PX - LEFT_PX
    assert idle == pytest.approx([whole * 9 / 15] * 2 + [whole] * 2, abs=0.1)


def test_the_last_update_is_within_the_view() -> None:
    root = ElementTree.fromstring(plots.moving(schedules.flush(4, 8).take(2)))
    _, _, width, height = map(float, root.attrib["viewBox"].split())
    for rect in root.iter(f"{SVG}rect"):
        line = float(rect.get("stroke-width", 0)) / 2
        assert float(rect.attrib["x"]) + float(rect.attrib["width"]) + line <= width
        assert float(rect.attrib["y"]) + float(rect.attrib["height"]) <= height
