"""How events and idle time look, where they are drawn, and what hovering says."""

from pipekit import schedules, simulate
from pipekit.clusters import flat
from pipekit.plots import style
from pipekit.plots.events import bars, event_styles, idle
from pipekit.profiling import LayerProfile, Profile
from pipekit.schedules import Schedule
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


def test_hovering_tells_worker_stage_microbatch_version_and_times() -> None:
    trace = Trace.from_schedule(schedules.two_bw(2, 2).take(3))
    by_name = {bar.name: bar for bar in bars(trace, 1, "slots", versions=False)}
    forward, update = by_name["forward"], by_name["update"]
    assert forward.customdata[4].tolist() == [
        0,
        0,
        4,
        1,
        *trace.frame.query("worker == 0 and op == 'FORWARD' and microbatch == 4")[
            ["start_s", "end_s"]
        ].iloc[0],
    ]
    assert "reads version" in forward.hovertemplate
    assert "makes version" in update.hovertemplate


def names(schedule: Schedule) -> tuple[list[str], list[tuple[str, int, str]]]:
    """The styles' names, and of each event: op, stage, colour."""
    trace = Trace.from_schedule(schedule)
    found, kinds = event_styles(trace)
    frame = trace.frame
    events = zip(frame["op"], frame["stage"], (found[kind].color for kind in kinds), strict=True)
    return [look.name for look in found], list(events)


def test_with_one_stage_a_worker_it_is_the_op() -> None:
    found, events = names(schedules.flush(3, 2).take(1))
    assert found == ["forward", "backward", "update"]
    assert all(color == style.OPS[op].color for op, _, color in events)


def test_later_stages_of_a_worker_are_lighter_and_updates_come_last() -> None:
    found, events = names(schedules.interleaved(6, 2, workers=2).take(1))
    again = [f"{op}, later stage" for op in ("forward", "backward")]
    assert found == ["forward", "backward", *again, *again, "update"]
    for op, stage, color in events:
        part = 0 if op == "UPDATE" else [0, 0.325, 0.65][stage // 2]
        assert color == style.whiter(style.OPS[op].color, part)
