from pipekit import schedules
from pipekit.plots.timelines.bars import bars
from pipekit.traces import Trace


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


def test_times_are_scaled_to_the_unit() -> None:
    trace = Trace.from_schedule(schedules.gpipe(2, 2).take(1))
    found = {bar.name: bar for bar in bars(trace, 1000, "ms", versions=False)}
    assert list(found["idle"].x) == [9000, 9000]
    forward = found["forward"]
    assert forward.base[:2].tolist() == [0, 1000]
    assert " ms<" in forward.hovertemplate
