"""Where a trace's time went: every share of it by hand, and whatever the run it is 100 %."""

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from pipekit import Execution, Pipeline, schedules, simulate
from pipekit.clusters import flat
from pipekit.plans import Plan
from pipekit.profiling import LayerProfile, Profile
from pipekit.schedules import Schedule, ScheduleError
from pipekit.traces import COLUMNS, Trace, describe_gaps
from pipekit.traces.breakdown import CATEGORIES
from tests.schedules.strategies import taken


def profile(*seconds: tuple[float, float], output_bytes: float = 0.0) -> Profile:
    """Return a layer for each (forward, backward)."""
    return Profile(tuple(LayerProfile("layer", f, b, output_bytes) for f, b in seconds))


def whole(trace: Trace) -> dict[str, float]:
    """Return the shares of all workers that are not 0."""
    return {name: share for name, share in trace.breakdown().loc["all"].items() if share > 1e-9}


@pytest.mark.parametrize(("k", "t"), [(1, 3), (4, 8)])
def test_balanced_gpipe_has_its_bubble_and_nothing_else(k: int, t: int) -> None:
    bubble = 100 * (k - 1) / (t + k - 1)
    gpipe, flush = schedules.gpipe(k, t), schedules.flush(k, t)
    for table in (gpipe.take(1), gpipe.take(3), flush.take(1)):
        shares = whole(Trace.from_schedule(table))
        assert shares == pytest.approx(
            {"computation": 100 - bubble} | ({"bubble": bubble} if k > 1 else {})
        )


def test_imbalance_is_what_equal_stages_would_save() -> None:
    """Passes of 1 and 3 in place of 2 and 2: 2 (1 + 3 T) against 2 (2 + 2 T), on 2 workers."""
    trace = simulate(schedules.gpipe(2, 4).take(1), profile((1, 1), (3, 3)))
    assert trace.makespan_s == 26
    parts = {"computation": 32, "imbalance": 2 * (26 - 20), "bubble": 2 * 20 - 32}
    assert whole(trace) == pytest.approx({name: 100 * s / 52 for name, s in parts.items()})


def test_a_stage_on_two_workers_is_balanced_if_its_passes_take_twice_as_long() -> None:
    trace = simulate(
        schedules.pipedream([2, 1]).take(40),
        profile((2, 4), (1, 2)),
        Plan.by_hand([1, 1], replicas=[2, 1]),
    )
    assert trace.breakdown()["imbalance"].tolist() == pytest.approx([0] * 4)


def test_recomputation_and_updates_are_counted_apart() -> None:
    layer = LayerProfile("layer", 1, 2, update_s=3)
    trace = simulate(
        schedules.gpipe(1, 2).take(1), Profile((layer,)), Plan.by_hand([1], recompute="always")
    )
    assert whole(trace) == pytest.approx(
        {"computation": 600 / 11, "recompute": 200 / 11, "update": 300 / 11}
    )


def test_messages_on_their_way_are_communication() -> None:
    quick = simulate(schedules.gpipe(2, 4).take(1), profile((1, 2), (1, 2)))
    slow = simulate(
        schedules.gpipe(2, 4).take(1), profile((1, 2), (1, 2), output_bytes=1), cluster=flat(2, 4)
    )
    lost = slow.makespan_s - quick.makespan_s
    assert lost == pytest.approx(0.5)
    shares = slow.breakdown()
    assert shares["communication"].tolist() == pytest.approx([100 * lost / slow.makespan_s] * 3)
    assert shares.loc["all", "other"] == pytest.approx(0, abs=1e-9)


def test_gaps_without_a_message_are_other() -> None:
    trace = Trace.from_schedule(schedules.gpipe(1, 4).take(1))
    late = trace.frame["op"] == "BACKWARD"
    moved = trace.frame.assign(
        **{c: trace.frame[c] + late + (trace.frame["op"] == "UPDATE") for c in ("start_s", "end_s")}
    )
    assert whole(replace(trace, frame=moved)) == pytest.approx(
        {"computation": 1200 / 13, "other": 100 / 13}
    )


def test_a_trace_without_time_and_one_that_lacks_events_are_refused() -> None:
    with pytest.raises(ValueError, match="no time can be split"):
        Trace(pd.DataFrame(columns=COLUMNS), "measured", "nothing", 2).breakdown()
    trace = Trace.from_schedule(schedules.gpipe(2, 2).take(1))
    part = replace(trace, frame=trace.frame[trace.frame["worker"] == 1])
    for asked in (part.breakdown, part.gaps):
        with pytest.raises(ScheduleError):
            asked()


tables = st.one_of(
    taken(st.builds(schedules.gpipe, st.integers(1, 4), st.integers(1, 5)), st.integers(1, 2)),
    taken(st.builds(schedules.flush, st.integers(1, 4), st.integers(1, 5)), st.integers(1, 2)),
    taken(
        st.builds(schedules.pipedream, st.lists(st.integers(1, 3), min_size=1, max_size=3)),
        st.just(7),
    ),
    taken(st.builds(schedules.asp, st.integers(1, 3)), st.integers(1, 7)),
)


@given(tables, st.data())
def test_whatever_happens_shares_are_all_of_the_time_and_none_is_negative(
    table: Schedule, data: st.DataObject
) -> None:
    lasting = st.floats(0.1, 10)
    costs = st.tuples(lasting, lasting, lasting, lasting)
    layers = [
        LayerProfile("layer", *data.draw(costs), update_s=data.draw(lasting))
        for _ in range(table.stages)
    ]
    plan = Plan.by_hand(
        [1] * table.stages,
        replicas=[len(workers) for workers in table.stage_workers],
        recompute=data.draw(st.sampled_from(["never", "except_last", "always"])),
    )
    cluster = flat(len(table.workers), data.draw(lasting))
    trace = simulate(table, Profile(tuple(layers), input_bytes=1), plan, cluster)
    shares = trace.breakdown()
    assert list(shares.columns) == CATEGORIES
    assert (shares >= 0).all(axis=None)
    assert shares.sum(axis=1).tolist() == pytest.approx([100] * len(shares), abs=1e-9)
    assert shares.iloc[:-1].mean().tolist() == pytest.approx(shares.loc["all"].tolist(), abs=1e-9)
    busy = (trace.frame["end_s"] - trace.frame["start_s"]).groupby(trace.frame["op"]).sum()
    seconds = shares.loc["all"] / 100 * trace.makespan_s * trace.workers
    assert seconds["computation"] == pytest.approx(busy["FORWARD"] + busy["BACKWARD"])
    assert seconds["update"] == pytest.approx(busy["UPDATE"])


def test_measured_runs_have_their_shares_too() -> None:
    data = [(torch.randn(8, 4), torch.randn(8, 4))] * 3
    run = Pipeline(
        nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)),
        schedules.gpipe(2, 4),
        balance=[1, 1],
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        loss=nn.MSELoss(),
        execution=Execution(recompute="always"),
    ).train(data)
    shares = run.trace.breakdown()
    assert shares.sum(axis=1).tolist() == pytest.approx([100] * 3)
    assert (shares[["computation", "recompute", "update", "other"]] > 0).all(axis=None)
    assert set(run.trace.frame["op"]) == {"FORWARD", "BACKWARD", "UPDATE", "RECOMPUTE"}


# --- Why workers are idle: every gap by hand, and gaps fill what is left ----------------------------


def told(trace: Trace) -> list[tuple[Any, ...]]:
    """Return worker, from, to, cause and what is waited for of each gap."""
    columns = ["worker", "start_s", "end_s", "cause", "waits_for"]
    return list(trace.gaps()[columns].itertuples(index=False, name=None))


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
    said = describe_gaps(trace.gaps(), trace.makespan_s, 3)
    assert said == "idle: 5.6 % warm-up, 16.7 % gradient, 11.1 % drain"


some_tables = st.sampled_from(
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


@given(
    some_tables, st.lists(st.tuples(st.integers(1, 5), st.integers(1, 5)), min_size=6, max_size=6)
)
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
