"""Simulated seconds against closed forms, the schedule's own slots, and the longest path."""

import math

import pytest
from hypothesis import given

import pipekit as pk
from pipekit import bucketing
from pipekit.clusters import flat
from pipekit.plans import Plan
from pipekit.profiling import LayerProfile, Profile
from pipekit.schedules import (
    Op,
    Schedule,
    ScheduleError,
    draw,
    flush,
    gpipe,
    parse,
    pipedream,
    replicate,
    slots,
)
from pipekit.schedules.messages import MessageChannel, check_messages, with_messages
from pipekit.simulation import Costs, simulate
from pipekit.traces import RECOMPUTE, Trace
from tests.schedules.strategies import training_methods


@pytest.fixture(autouse=True)
def _a_bucket_for_each_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bucketing, "BUCKET_BYTES", 1)


@given(training_methods)
def test_with_free_links_it_is_what_the_picture_shows(schedule: Schedule) -> None:
    trace = simulate(schedule, Profile.uniform(schedule.stages))
    for worker, times in enumerate(slots(schedule)):
        own = trace.frame[trace.frame["worker"] == worker]
        assert own[["start_s", "end_s"]].to_numpy().tolist() == times.tolist()


def test_a_transfer_delays_the_next_stage_and_nobody_else() -> None:
    profile = Profile.uniform(2, 1, 2, output_bytes=50)
    trace = simulate(gpipe(2, 2).take(1), profile, cluster=flat(2, 100.0))
    assert _times(trace, "stage == 0 and op == 'FORWARD'") == [(0, 1), (1, 2)]
    assert _times(trace, "stage == 1 and op == 'FORWARD'") == [(1.5, 2.5), (2.5, 3.5)]
    assert _times(trace, "stage == 0 and op == 'BACKWARD'") == [(6, 8), (8, 10)]


def test_every_message_is_followed() -> None:
    profile = Profile.uniform(3, 1, 2, output_bytes=50)
    trace = simulate(flush(3, 4).take(1), profile, cluster=flat(3, 100.0))
    assert trace.transfers is not None
    counted = trace.transfers.groupby(["source", "destination", "purpose"])["bytes"].sum()
    assert counted.to_dict() == {
        (0, 1, "activation"): 200,
        (1, 2, "activation"): 200,
        (1, 0, "gradient"): 200,
        (2, 1, "gradient"): 200,
    }
    assert trace.frame["bytes"].sum() == 800
    assert (trace.transfers["end_s"] - trace.transfers["start_s"]).eq(0.5).all()


def test_what_stays_on_a_worker_is_not_sent() -> None:
    schedule = parse("worker 0 | F0 F0@1 B0@1^@1 B0^")
    trace = simulate(schedule, Profile.uniform(2, 1, 2, output_bytes=50), cluster=flat(1, 1.0))
    assert trace.makespan_s == 6
    assert trace.transfers is not None
    assert trace.transfers.empty


def test_without_a_cluster_a_sum_is_listed_too_and_takes_no_time() -> None:
    layer = LayerProfile("layer", 1.0, 2.0, parameter_bytes=100)
    plan = Plan.by_hand([2], replicas=[2])
    trace = simulate(replicate(flush(1, 1), 2), Profile((layer, layer)), plan)
    assert trace.makespan_s == 2 + 4
    assert trace.transfers is not None
    assert trace.transfers["purpose"].eq("weights").all()
    assert trace.transfers["bytes"].sum() == 4 * (2 - 1) / 2 * 200
    assert trace.transfers["start_s"].equals(trace.transfers["end_s"])


def test_recomputing_adds_a_forward_that_need_not_wait_for_the_gradient() -> None:
    plan = Plan.by_hand([1, 1], recompute="always")
    trace = simulate(gpipe(2, 2).take(1), Profile.uniform(2, 1, 2), plan)
    assert _times(trace, "stage == 0 and op == 'RECOMPUTE'") == [(2, 3), (8, 9)]
    assert _times(trace, "stage == 0 and op == 'BACKWARD'") == [(6, 8), (9, 11)]
    assert _times(trace, "stage == 1 and op == 'RECOMPUTE'") == [(3, 4), (6, 7)]


def test_except_last_keeps_the_last_microbatch_of_each_batch() -> None:
    plan = Plan.by_hand([1, 1], recompute="except_last")
    frame = simulate(gpipe(2, 3).take(2), Profile.uniform(2), plan).frame
    assert set(frame[frame["op"] == RECOMPUTE]["microbatch"]) == {0, 1, 3, 4}


def test_an_update_copies_the_weights_just_if_the_version_before_is_still_read() -> None:
    layer = LayerProfile("layer", 1.0, 2.0, update_s=0.5, copy_s=0.25)
    trace = simulate(pipedream(2).take(6), Profile((layer, layer)))
    updates = trace.frame[trace.frame["op"] == "UPDATE"]
    seconds = (updates["end_s"] - updates["start_s"]).groupby(updates["stage"]).apply(list)
    assert seconds[1] == [0.5] * 6, "the last stage has one minibatch in flight"
    assert seconds[0] == [0.75] * 5 + [0.5], "after the last, nobody reads an old version"


def test_a_plan_says_which_layers_a_stage_has_and_how_many_rows() -> None:
    profile = Profile.uniform(4)
    plan = Plan.by_hand([3, 1], rows=5)
    trace = simulate(gpipe(2, 1).take(1), profile, plan)
    assert _times(trace, "op == 'FORWARD'") == [(0, 15), (15, 20)]


@pytest.mark.parametrize(
    ("schedule", "plan", "message"),
    [
        (flush(2, 2).take(1), None, "the profile has 3 layers and the schedule 2 stages: pass a"),
        (flush(2, 2).take(1), Plan.by_hand([1, 1, 1]), "the plan has 3 stages and the schedule 2"),
        (flush(2, 2).take(1), Plan.by_hand([1, 1]), "the plan is for 2 layers and the profile"),
        (flush(2, 2).take(1), Plan.by_hand([1, 2], replicas=[2, 1]), "the plan has stage 0 on 2"),
    ],
)
def test_what_does_not_fit_is_refused(schedule: Schedule, plan: Plan | None, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        simulate(schedule, Profile.uniform(3), plan)


@pytest.mark.parametrize("number", [-1, math.nan, math.inf])
def test_numbers_that_cannot_be_are_refused(number: float) -> None:
    made, costs = flush(2, 2), Profile.uniform(2)
    for take in (
        lambda: simulate(made, costs, optimizer_states=number),
        lambda: Costs(costs, host_bytes_per_s=number),
        lambda: draw(made, {Op.FORWARD: number}),  # type: ignore[dict-item]
        lambda: slots(made.take(1), {Op.FORWARD: number}),
        lambda: check_messages(with_messages(made), MessageChannel(), link=number),
    ):
        with pytest.raises(ValueError, match=r"must be .* number"):
            take()


def test_swapped_arguments_are_named() -> None:
    made, costs = flush(2, 2), Profile.uniform(2)
    for take, says in (
        (lambda: simulate(costs, made), "schedule must be a Schedule, e.g.*not Profile"),  # type: ignore[arg-type]
        (lambda: pk.plan(costs, "flat"), "cluster must be a Cluster, e.g.*not str"),  # type: ignore[arg-type]
        (lambda: pk.search(costs, made), "plan must be a Plan, e.g.*not Schedule"),  # type: ignore[arg-type]
    ):
        with pytest.raises(TypeError, match=says):
            take()


def test_a_cluster_that_is_too_small_is_refused() -> None:
    with pytest.raises(ValueError, match="has 3 workers and cluster 'flat' only 2: use one with"):
        simulate(flush(3, 3).take(1), Profile.uniform(3), cluster=flat(2, 1.0))


def test_a_schedule_that_cannot_run_is_refused() -> None:
    with pytest.raises(ScheduleError, match="can never finish"):
        simulate(parse("worker 0 | B0 F0^0"), Profile.uniform(1))


def _times(trace: Trace, query: str) -> list[tuple[float, float]]:
    rows = trace.frame.query(query)
    return list(zip(rows["start_s"], rows["end_s"], strict=True))


def test_an_idle_worker_leaves_the_others_numbers_whole() -> None:
    busy = gpipe(2, 2).take(1)
    schedule = Schedule((*busy.workers, ()), "one more worker")
    frame = simulate(schedule, Profile.uniform(2)).frame
    assert [frame[column].dtype.kind for column in ("worker", "stage", "microbatch")] == ["i"] * 3
