"""A timeline's picture for the browser, and a canvas's state."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from pipekit import Profile, Trace, plots, schedules, simulate
from pipekit.clusters import flat
from pipekit.explore.browser.picture import LEFT_PX, explained, picture
from pipekit.explore.browser.widgets import TimelineCanvas
from pipekit.plots import style


def column(drawn: dict[str, Any], name: str) -> np.ndarray:
    """Return a column of what is sent: of a picture, its gaps or its transfers."""
    kind = np.float32 if name in ("start", "end") else np.int32
    return np.frombuffer(drawn["columns"][name], kind)


def simulated() -> Trace:
    return simulate(schedules.two_bw(4, 4).take(3), Profile.uniform(4, 0.01, 0.02))


def test_a_bar_for_each_event_from_time_0_in_a_readable_unit() -> None:
    trace = simulated()
    later = replace(
        trace,
        frame=trace.frame.assign(**{time: trace.frame[time] + 7 for time in ("start_s", "end_s")}),
    )
    for each in (trace, later):
        drawn = picture(each)
        assert drawn["unit"] == "ms"
        np.testing.assert_allclose(column(drawn, "start"), 1e3 * trace.frame["start_s"], atol=1e-2)
        np.testing.assert_allclose(column(drawn, "end"), 1e3 * trace.frame["end_s"], atol=1e-2)
        assert drawn["span"] == pytest.approx(1e3 * trace.makespan_s)


def test_columns_say_what_every_bar_is() -> None:
    trace = simulated()
    drawn = picture(trace)
    assert column(drawn, "lane").tolist() == trace.frame["worker"].tolist()
    for name in ("stage", "microbatch", "version"):
        assert column(drawn, name).tolist() == trace.frame[name].tolist()
    shown = [drawn["styles"][kind] for kind in column(drawn, "kind")]
    assert shown == [style.OPS[op]._asdict() for op in trace.frame["op"]]
    ops = [look for op, look in style.OPS.items() if op in set(trace.frame["op"])]
    assert drawn["styles"] == [look._asdict() for look in ops]


def test_title_styles_and_left_edge_are_those_of_the_plotly_figures() -> None:
    trace = simulated()
    assert picture(trace)["title"] == style.whole(plots.timeline(trace).layout.title.text)
    assert trace.memory is not None
    assert plots.memory(trace.memory).layout.margin.l == LEFT_PX


def test_idleness_ends_with_the_methods_own_end_on_a_longer_axis() -> None:
    trace = simulated()
    longest = 2 * trace.makespan_s
    drawn, why = picture(trace, longest=longest), explained(trace, longest=longest)
    assert drawn["end"] == pytest.approx(drawn["span"] / 2)
    assert column(why, "end").max() == pytest.approx(drawn["end"])


def test_nothing_cannot_be_drawn() -> None:
    trace = simulated()
    with pytest.raises(ValueError, match="has no events to draw"):
        picture(replace(trace, frame=trace.frame.iloc[:0]))


def test_bytes_lie_part_upon_part_below_the_rows_if_asked() -> None:
    profile = Profile.uniform(4, 0.01, 0.02, output_bytes=4e6, parameter_bytes=16e6)
    trace = simulate(schedules.two_bw(4, 4).take(3), profile)
    assert trace.memory is not None
    assert picture(trace)["memory"] is None
    most = max(trace.memory.peak_bytes)
    drawn = picture(trace, most_bytes=most, capacity=2 * most)["memory"]
    held = np.frombuffer(drawn["columns"]["held"], np.float32).reshape(-1, len(drawn["styles"]))
    assert (np.diff(held, axis=1) >= 0).all()
    assert held.max() == pytest.approx(drawn["top"])
    assert drawn["capacity"] == pytest.approx(2 * drawn["top"])


def test_gaps_say_why_and_whose_event_is_waited_for() -> None:
    trace = Trace.from_schedule(schedules.gpipe(2, 1).take(1))
    why = explained(trace)
    names = [why["causes"][number]["name"] for number in column(why, "cause")]
    assert names == ["gradient", "warm-up", "drain"]
    assert column(why, "start").tolist() == [1, 0, 4]
    assert column(why, "end").tolist() == [4, 1, 6]
    assert column(why, "lane").tolist() == [0, 1, 1]
    ops = [[*trace.frame["op"], None][row] for row in column(why, "waits")]
    assert ops == ["BACKWARD", "FORWARD", None]
    assert [*column(why, "before")] == [1, 3, -1]  # B0 of stage 0, F0 of stage 1, nothing


def test_every_cause_that_there_is_has_a_look_of_its_own() -> None:
    causes = explained(simulated())["causes"]
    assert len({(c["own"]["color"], c["own"]["pattern"]) for c in causes}) == len(causes)
    assert all(cause["own"]["pattern"] for cause in causes), "hatched, to be told from passes"


def test_a_slice_of_a_run_is_not_explained() -> None:
    trace = Trace.from_schedule(schedules.gpipe(2, 2).take(1))
    assert explained(replace(trace, frame=trace.frame.query("start_s >= 3"))) == {}


def test_messages_go_from_worker_to_worker_while_they_are_on_a_link() -> None:
    profile = Profile.uniform(2, 0.01, 0.02, output_bytes=1e6)
    sent = picture(simulate(schedules.gpipe(2, 1).take(1), profile, None, flat(2, 1e8)))[
        "transfers"
    ]
    assert sent["purposes"] == ["activation", "gradient"]
    assert column(sent, "source").tolist() == [0, 1]
    assert column(sent, "destination").tolist() == [1, 0]
    np.testing.assert_allclose(column(sent, "end") - column(sent, "start"), 10, rtol=1e-5)
    assert picture(Trace.from_schedule(schedules.gpipe(2, 1).take(1)))["transfers"] is None


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
