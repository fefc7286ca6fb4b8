"""Where a trace's time went: every share of it by hand, and whatever the run it is 100 %."""

from dataclasses import replace

import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from pipekit import Execution, Pipeline, emulate, schedules, simulate
from pipekit.clusters import flat
from pipekit.plans import Plan
from pipekit.profiling import LayerProfile, Profile
from pipekit.schedules import Schedule, ScheduleError
from pipekit.traces import COLUMNS, Trace
from pipekit.traces.breakdown import CATEGORIES
from tests.emulation.own_time import own_time
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
    for table in (
        schedules.gpipe(k, t).take(1),
        schedules.gpipe(k, t).take(3),
        schedules.flush(k, t).take(1),
    ):
        shares = whole(Trace.from_schedule(table))
        assert shares == pytest.approx(
            {"computation": 100 - bubble} | ({"bubble": bubble} if k > 1 else {})
        )


def test_imbalance_is_what_equal_stages_would_save() -> None:
    """Passes of 1 and 3 in place of 2 and 2: 2 (1 + 3 T) against 2 (2 + 2 T), on 2 workers."""
    trace = simulate(schedules.gpipe(2, 4).take(1), profile((1, 1), (3, 3)))
    assert trace.makespan_s == 26
    assert whole(trace) == pytest.approx(
        {
            "computation": 100 * 32 / 52,
            "imbalance": 100 * 2 * (26 - 20) / 52,
            "bubble": 100 * (2 * 20 - 32) / 52,
        }
    )


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
    with pytest.raises(ScheduleError):
        replace(trace, frame=trace.frame[trace.frame["worker"] == 1]).breakdown()


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


def test_emulated_and_measured_runs_have_their_shares_too() -> None:
    passes = profile((0.02, 0.04), (0.04, 0.08))
    with own_time():
        ours = emulate(schedules.gpipe(2, 4).take(1), passes).trace.breakdown()
    theirs = simulate(schedules.gpipe(2, 4).take(1), passes).breakdown()
    assert ours.to_numpy() == pytest.approx(theirs.to_numpy())
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
