from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from pipekit import Profile, Trace, plots, schedules, simulate
from pipekit.explore import TimelineCanvas, picture
from pipekit.explore.page.canvas import LEFT_PX
from pipekit.plots import style


def column(drawn: dict[str, Any], name: str) -> np.ndarray:
    kind = np.float32 if name in ("start", "end") else np.int32
    return np.frombuffer(drawn["columns"][name], kind)


def simulated() -> Trace:
    return simulate(schedules.two_bw(4, 4, 3), Profile.uniform(4, 0.01, 0.02))


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
    assert picture(trace)["title"] == plots.timeline(trace).layout.title.text
    assert trace.memory is not None
    assert plots.memory(trace.memory).layout.margin.l == LEFT_PX


def test_traces_that_share_an_axis_have_the_span_of_the_longest() -> None:
    assert picture(simulated(), longest=2.0)["span"] == 2
    assert picture(simulated(), longest=2.0)["unit"] == "s"


def test_slots_stay_slots() -> None:
    drawn = picture(Trace.from_schedule(schedules.gpipe(2, 2)), ["a", "b"])
    assert (drawn["unit"], drawn["span"], drawn["notes"]) == ("slots", 9, ["a", "b"])
    assert drawn["lanes"] == ["worker 0", "worker 1"]


def test_nothing_cannot_be_drawn() -> None:
    trace = simulated()
    with pytest.raises(ValueError, match="has no events to draw"):
        picture(replace(trace, frame=trace.frame.iloc[:0]))


def test_a_new_picture_is_shown_whole() -> None:
    canvas = TimelineCanvas()
    canvas.view, canvas.until = [1.0, 2.0], 1.5
    canvas.show(picture(simulated()))
    assert (canvas.view, canvas.until) == ([], -1)
    assert canvas.picture["title"].startswith("PipeDream-2BW")


def gap(drawn: dict[str, Any], name: str) -> np.ndarray:
    kind = np.float32 if name in ("start", "end") else np.int32
    return np.frombuffer(drawn["gaps"]["columns"][name], kind)


def test_gaps_say_who_waits_for_whom() -> None:
    drawn = picture(Trace.from_schedule(schedules.gpipe(2, 1)))
    looks = [drawn["gaps"]["styles"][kind]["name"] for kind in gap(drawn, "kind")]
    assert looks == ["waits for a pass", "idle", "idle"]
    assert gap(drawn, "start").tolist() == [1, 0, 4]
    assert gap(drawn, "lane").tolist() == [0, 1, 1]
    assert drawn["gaps"]["told"][0].endswith("B0 of stage 0, which needs B0 of stage 1 on worker 1")


def test_the_critical_path_names_bars_in_their_order() -> None:
    trace = Trace.from_schedule(schedules.gpipe(2, 1))
    ops = [trace.frame["op"][place] for place in picture(trace)["critical"]]
    assert ops == ["FORWARD", "FORWARD", "BACKWARD", "BACKWARD"]


def test_bytes_lie_part_upon_part_below_the_rows_if_asked() -> None:
    profile = Profile.uniform(4, 0.01, 0.02, output_bytes=4e6, parameter_bytes=16e6)
    trace = simulate(schedules.two_bw(4, 4, 3), profile)
    assert trace.memory is not None
    assert picture(trace)["memory"] is None
    most = max(trace.memory.peak_bytes)
    drawn = picture(trace, most_bytes=most, capacity=2 * most)["memory"]
    held = np.frombuffer(drawn["columns"]["held"], np.float32).reshape(-1, len(drawn["styles"]))
    assert (np.diff(held, axis=1) >= 0).all()
    assert held.max() == pytest.approx(drawn["top"])
    assert drawn["capacity"] == pytest.approx(2 * drawn["top"])


def test_a_slice_of_a_run_has_neither_gaps_nor_a_critical_path() -> None:
    trace = Trace.from_schedule(schedules.gpipe(2, 2))
    drawn = picture(replace(trace, frame=trace.frame.query("start_s >= 3")))
    assert (drawn["critical"], drawn["gaps"]["told"]) == ([], [])
