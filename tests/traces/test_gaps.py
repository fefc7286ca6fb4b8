"""Why workers are idle: every gap of small runs by hand; whatever the run, gaps fill what is left."""

from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipekit import schedules, simulate
from pipekit.clusters import flat
from pipekit.plans import Plan
from pipekit.profiling import LayerProfile, Profile
from pipekit.schedules import Schedule, ScheduleError
from pipekit.traces import Trace, describe_gaps


def told(trace: Trace) -> list[tuple[Any, ...]]:
    """Return worker, from, to, cause and what is waited for of each gap."""
    columns = ["worker", "start_s", "end_s", "cause", "waits_for"]
    return list(trace.gaps()[columns].itertuples(index=False, name=None))


def profile(*seconds: tuple[float, float], output_bytes: float = 0.0) -> Profile:
    return Profile(tuple(LayerProfile("layer", f, b, output_bytes) for f, b in seconds))


def test_gpipe_fills_waits_for_the_first_gradient_and_drains() -> None:
    assert told(Trace.from_schedule(schedules.gpipe(3, 4).take(1))) == [
        (0, 4, 10, "gradient", "B0 of stage 1"),
        (1, 0, 1, "warm-up", "F0 of stage 0"),
        (1, 5, 8, "gradient", "B0 of stage 2"),
        (1, 16, 18, "drain", ""),
        (2, 0, 2, "warm-up", "F0 of stage 1"),
        (2, 14, 18, "drain", ""),
    ]


def test_what_is_computed_and_not_there_is_on_its_way() -> None:
    """A message of 2 bytes at 1 byte/s behind passes of a second."""
    trace = simulate(
        schedules.gpipe(2, 1).take(1), profile((1, 1), (1, 1), output_bytes=2), None, flat(2, 1)
    )
    assert told(trace) == [
        (0, 1, 5, "gradient", "B0 of stage 1"),
        (0, 5, 7, "transfer", "B0 of stage 1"),
        (1, 0, 3, "warm-up", "F0 of stage 0"),
        (1, 5, 8, "drain", ""),
    ]
    assert trace.gaps()["before"].tolist()[:2] == ["B0 of stage 0"] * 2
    assert trace.gaps()["waits_for_worker"].tolist() == [1, 1, 0, -1]


def test_stages_that_update_together_stop_for_one_another() -> None:
    """Stage 1 has its gradient at 4, stage 0 at 6; both update from 7 on."""
    frame = Trace.from_schedule(schedules.gpipe(2, 1).take(1)).frame
    frame.loc[frame["op"] == "UPDATE", ["start_s", "end_s"]] = 7, 8
    trace = Trace(frame, "measured", "clipped", 2)
    assert told(trace) == [
        (0, 1, 4, "gradient", "B0 of stage 1"),
        (0, 6, 7, "global stop", ""),
        (1, 0, 1, "warm-up", "F0 of stage 0"),
        (1, 4, 6, "global stop", "B0 of stage 0"),
        (1, 6, 7, "global stop", ""),
    ]
    assert trace.gaps()["waits_for_worker"].tolist() == [1, -1, 0, 0, -1]


def test_an_update_waits_for_the_sum_of_other_workers() -> None:
    """Data parallelism, in which worker 1 takes twice as long as worker 0."""
    frame = Trace.from_schedule(schedules.pipedream([2]).take(2)).frame
    frame[["start_s", "end_s"]] *= np.where(frame["worker"] == 1, 2, 1)[:, None]
    frame.loc[frame["op"] == "UPDATE", ["start_s", "end_s"]] = 7, 8
    assert told(Trace(frame, "measured", "BSP", 2)) == [
        (0, 3, 6, "sum", "B1 of stage 0"),
        (0, 6, 7, "sum", "B1 of stage 0"),
        (1, 6, 7, "other", ""),
    ]


def test_the_shares_of_causes_in_words() -> None:
    trace = Trace.from_schedule(schedules.gpipe(3, 4).take(1))
    assert (
        describe_gaps(trace.gaps(), trace.makespan_s, 3)
        == "idle: 5.6 % warm-up, 16.7 % gradient, 11.1 % drain"
    )


def test_a_slice_of_a_run_does_not_say_why_its_workers_wait() -> None:
    trace = Trace.from_schedule(schedules.gpipe(2, 2).take(1))
    part = Trace(trace.frame.query("start_s >= 3"), "exact", "part", 2)
    with pytest.raises(ScheduleError):
        part.gaps()


TABLES = st.sampled_from(
    [
        schedules.gpipe(3, 4).take(2),
        schedules.flush(4, 5).take(1),
        schedules.pipedream([2, 1]).take(7),
        schedules.two_bw(3, 3).take(3),
        schedules.interleaved(4, 4, workers=2).take(1),
        schedules.zb_h1(3, 4).take(1),
        schedules.zb_v(6, 4).take(1),
        schedules.dualpipe(4, 8).take(1),
    ]
)


@given(TABLES, st.lists(st.tuples(st.integers(1, 5), st.integers(1, 5)), min_size=6, max_size=6))
def test_gaps_and_events_fill_the_run(table: Schedule, seconds: list[tuple[float, float]]) -> None:
    homes = [len(each) for each in table.stage_workers]
    plan = Plan.by_hand([1] * len(homes), replicas=homes)
    costs = profile(*seconds[: len(homes)], output_bytes=3.0)
    trace = simulate(table, costs, plan, flat(len(table.workers), 2.0))
    busy = trace.frame.groupby("worker")
    gaps = trace.gaps()
    assert (gaps["end_s"] > gaps["start_s"]).all()
    for worker, events in busy:
        idle = gaps[gaps["worker"] == worker]
        spans = ["start_s", "end_s"]
        covered = pd.concat([events[spans], idle[spans]]).sort_values(spans)
        until = 0.0
        for start, end in covered.itertuples(index=False):
            assert start <= until + 1e-9, "something is missing"
            until = max(until, end)
        assert until == pytest.approx(trace.makespan_s)
        for gap in idle.itertuples():
            inside = (events["start_s"] < gap.end_s - 1e-9) & (events["end_s"] > gap.start_s + 1e-9)
            assert not inside.any()


def test_a_gap_names_the_rows_of_its_events() -> None:
    trace = Trace.from_schedule(schedules.gpipe(2, 2).take(1))
    for gap in trace.gaps().itertuples():
        for name, row in ((gap.waits_for, gap.waits_for_row), (gap.before, gap.before_row)):
            event = trace.frame.iloc[row]
            label = f"{event['op'][0]}{event['microbatch']} of stage {event['stage']}"
            assert name == (label if row >= 0 else "")


def test_a_worker_that_waits_for_a_load_or_a_gather_waits_for_a_transfer() -> None:
    loaded = Schedule.from_torch_csv("0UNSHARD,0F0,0B0,\n", "gathers")
    assert told(Trace.from_schedule(loaded)) == [(0, 0, 1, "transfer", "G0 of stage 0")]
    away = schedules.parse("worker 0 | F0 F1/O0 F2 B1 - B2/L0 - B0 - -^2")
    trace = Trace.from_schedule(away, {schedules.LOAD: 5})
    assert told(trace) == [(0, 7, 12, "transfer", "L0 of stage 0")]
    assert trace.gaps()["waits_for_row"].tolist() == [-1]
