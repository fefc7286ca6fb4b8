"""Traces: one table of events, whatever they come from."""

import math
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from pipekit import schedules, simulate
from pipekit.clusters import flat
from pipekit.profiling import LayerProfile, Profile
from pipekit.schedules import Schedule, flush, gpipe, inference, pipedream, two_bw, zb_h1, zb_h2
from pipekit.traces import COLUMNS, Trace, describe_bubbles


def test_one_row_an_event() -> None:
    trace = Trace.from_schedule(gpipe(2, 1).take(1))
    assert trace.frame.to_csv(index=False, float_format="%g") == (
        "worker,stage,op,microbatch,version,start_s,end_s,bytes\n"
        "0,0,FORWARD,0,0,0,1,0\n"
        "0,0,BACKWARD,0,0,4,6,0\n"
        "0,0,UPDATE,0,1,6,6,0\n"
        "1,1,FORWARD,0,0,1,2,0\n"
        "1,1,BACKWARD,0,0,2,4,0\n"
        "1,1,UPDATE,0,1,4,4,0\n"
    )


@pytest.mark.parametrize(
    ("k", "t", "bubble"), [(2, 4, 0.200), (4, 4, 0.4286), (4, 16, 0.1579), (8, 32, 0.1795)]
)
def test_gpipes_and_flushs_bubble(k: int, t: int, bubble: float) -> None:
    """(K-1)/(T+K-1), for GPipe's forwards and backwards (GPipe, section 3.2) and for Flush."""
    for schedule in (*map(gpipe(k, t).take, (1, 3)), flush(k, t).take(1), inference(k).take(t)):
        trace = Trace.from_schedule(schedule)
        assert trace.bubble == pytest.approx((k - 1) / (t + k - 1), abs=1e-12)
        assert round(trace.bubble, 4) == bubble
        later = trace.frame[["start_s", "end_s"]] + 5
        assert replace(trace, frame=trace.frame.assign(**later)).bubble == trace.bubble


@pytest.mark.parametrize("workers", [(), ((), ())])
def test_an_empty_schedule_has_an_empty_trace(workers: tuple[()]) -> None:
    trace = Trace.from_schedule(Schedule(workers))
    assert trace.frame.empty
    assert trace.makespan_s == trace.bubble == 0
    assert list(trace.frame.columns) == COLUMNS


def test_csv_reads_back(tmp_path: Path) -> None:
    trace = Trace.from_schedule(pipedream(2).take(3))
    trace.to_csv(tmp_path / "trace.csv")
    pd.testing.assert_frame_equal(pd.read_csv(tmp_path / "trace.csv"), trace.frame)


def test_a_microbatch_is_a_whole_number(tmp_path: Path) -> None:
    trace = Trace.from_schedule(flush(2, 2))
    joined = replace(trace, frame=trace.frame.astype({"microbatch": float}))
    assert (joined.critical_path() == trace.critical_path()).all(axis=None)
    cut = replace(trace, frame=trace.frame.assign(microbatch=0.5))
    for read in (cut.critical_path, lambda: cut.to_perfetto(tmp_path / "t.json")):
        with pytest.raises(ValueError, match="a trace's microbatch must be a whole number"):
            read()


def test_ends_are_in_order_and_groups_end_with_their_last_microbatch() -> None:
    # worker 0 | F0 F1 .  B0 -  .  B1 -^ ...: a batch takes 9 slots
    flush = Trace.from_schedule(schedules.flush(2, 2).take(3))
    assert flush.ends("UPDATE", worker=0) == [9, 18, 27]
    assert flush.ends("UPDATE", worker=1) == [7, 16, 25]
    assert flush.ends("BACKWARD", stage=0) == [6, 9, 15, 18, 24, 27]
    assert flush.ends("BACKWARD", stage=1, group=2) == [7, 16, 25]


def test_passes_are_no_updates_and_as_many_workers_are_active_as_compute_at_a_time() -> None:
    pipelined = Trace.from_schedule(schedules.gpipe(2, 2).take(1))
    assert set(pipelined.passes["op"]) == {"FORWARD", "BACKWARD"}
    assert pipelined.most_active == 2
    assert Trace.from_schedule(schedules.model_parallel(3).take(2)).most_active == 1


def bubbles(schedule: Schedule) -> "pd.Series[float]":
    return Trace.from_schedule(schedule).bubbles().loc["all"]


@pytest.mark.parametrize("p", [2, 4])
def test_zb_h2_idles_in_none_but_the_makespan(p: int) -> None:
    m, batches = 3 * p, 4
    found = bubbles(zb_h2(p, m).take(batches))
    assert found["makespan"] == pytest.approx((p - 1) / (3 * m * batches + p - 1))
    assert found["span"] == pytest.approx(0)
    assert found["steady"] == pytest.approx(0)


@pytest.mark.parametrize("p", [2, 4])
def test_flush_and_zb_h1_pay_theirs_every_batch(p: int) -> None:
    m, batches = 2 * p, 4
    assert bubbles(flush(p, m).take(batches))["steady"] == pytest.approx((p - 1) / (m + p - 1))
    h1 = bubbles(zb_h1(p, m).take(batches))
    assert h1["steady"] == pytest.approx((p - 1) / (3 * m + p - 1))
    assert h1["makespan"] == pytest.approx(h1["steady"])
    assert h1["span"] < h1["makespan"]


def test_a_worker_that_begins_last_and_ends_first_has_no_bubble_in_its_span() -> None:
    shares = Trace.from_schedule(flush(3, 4).take(1)).bubbles()
    assert shares["makespan"].tolist() == pytest.approx([1 / 3] * 4)
    assert shares["span"].tolist()[:3] == pytest.approx([6 / 18, 3 / 15, 0])
    assert shares["steady"].isna().all()


@pytest.mark.parametrize("schedule", [pipedream(4).take(40), two_bw(4, 4).take(10)])
def test_without_flushes_the_steady_period_has_none(schedule: Schedule) -> None:
    found = bubbles(schedule)
    assert found["steady"] == pytest.approx(0, abs=1e-12)
    assert found["makespan"] > found["span"] > 0


def test_what_has_no_steady_period_is_not_said_to_have_a_bubble_in_it() -> None:
    found = bubbles(inference(2).take(4))
    assert found["makespan"] == pytest.approx(1 / 5)
    assert math.isnan(found["steady"])
    text = describe_bubbles(Trace.from_schedule(inference(2).take(4)).bubbles())
    assert text == "bubble 20.0 % of makespan, 0.0 % of spans"


def test_the_makespans_is_the_traces_and_idle_workers_count() -> None:
    trace = Trace.from_schedule(Schedule((flush(1, 2).take(1).workers[0], ())))
    shares = trace.bubbles()
    assert shares.loc["all", "makespan"] == trace.bubble == pytest.approx(0.5)
    assert shares.loc[1, "makespan"] == 1
    assert math.isnan(shares.loc[1, "span"])


def test_the_critical_path_is_as_long_as_the_run_with_the_waits_on_it() -> None:
    layers = tuple(LayerProfile("layer", f, 2 * f, 2.0) for f in (1, 3, 2))
    trace = simulate(flush(3, 5).take(1), Profile(layers), None, flat(3, 1.0))
    turned = trace.frame.sort_values("worker", ascending=False, kind="stable", ignore_index=True)
    for each in (trace, replace(trace, frame=turned)):
        path = each.critical_path()
        length = (path["end_s"] - path["start_s"] + path["waited_s"]).sum()
        assert length == pytest.approx(trace.makespan_s)
        assert (path["waited_s"] > 0).any(), "messages take time here"
        assert path["end_s"].iloc[-1] == trace.frame["end_s"].max()
