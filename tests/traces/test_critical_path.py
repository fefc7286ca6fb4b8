"""The critical path: whole from beginning to end, and all that it says is needed."""

from dataclasses import replace

import pytest
from pandas.testing import assert_frame_equal

from pipekit import schedules, simulate
from pipekit.clusters import flat
from pipekit.profiling import LayerProfile, Profile
from pipekit.traces import Trace


def names(trace: Trace) -> str:
    path = trace.critical_path()[["op", "microbatch", "worker"]]
    return " ".join(f"{op[0]}{k}/{w}" for op, k, w in path.itertuples(index=False))


def test_it_is_as_long_as_the_run_with_the_waits_on_it() -> None:
    layers = tuple(LayerProfile("layer", f, 2 * f, 2.0) for f in (1, 3, 2))
    trace = simulate(schedules.flush(3, 5).take(1), Profile(layers), None, flat(3, 1.0))
    path = trace.critical_path()
    length = (path["end_s"] - path["start_s"] + path["waited_s"]).sum()
    assert length == pytest.approx(trace.makespan_s)
    assert (path["waited_s"] > 0).any(), "messages take time here"
    assert path["end_s"].iloc[-1] == trace.frame["end_s"].max()


def test_what_events_waited_for_leads_from_the_last_along_the_critical_path() -> None:
    trace = simulate(schedules.gpipe(3, 4).take(1), Profile.uniform(3, 1, 2))
    last_first = trace.frame.sort_values("worker", ascending=False, kind="stable")
    for each in (trace, replace(trace, frame=last_first.reset_index(drop=True))):
        waited, row, rows = each.waited_for(), int(each.frame["end_s"].argmax()), []
        while row >= 0:
            rows.append(row)
            row = waited[row]
        path = each.critical_path().drop(columns="waited_s")
        assert_frame_equal(each.frame.loc[rows[::-1]].reset_index(drop=True), path)
