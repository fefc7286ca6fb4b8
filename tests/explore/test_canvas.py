from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from pipekit import Profile, Trace, plots, schedules, simulate
from pipekit.explore import TimelineCanvas, picture
from pipekit.explore.canvas import LEFT_PX
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
    canvas.view = [1.0, 2.0]
    canvas.show(picture(simulated()))
    assert canvas.view == []
    assert canvas.picture["title"].startswith("PipeDream-2BW")
