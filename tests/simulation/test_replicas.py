"""Stages on several workers, simulated: closed forms, the schedule's own slots, and bytes."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipekit import bucketing
from pipekit.clusters import V100, Cluster, Level, flat
from pipekit.plans import Plan
from pipekit.profiling import LayerProfile, Profile
from pipekit.schedules import Schedule, asp, pipedream, replicate, two_bw
from pipekit.simulation import simulate
from pipekit.traces import Trace

seconds = st.integers(1, 9).map(float)


@pytest.fixture(autouse=True)
def _a_bucket_for_each_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bucketing, "BUCKET_BYTES", 1)


def plan_for(schedule: Schedule, layers: list[int]) -> Plan:
    return Plan.by_hand(layers, replicas=[len(workers) for workers in schedule.stage_workers])


def ends(trace: Trace, op: str, worker: int = 0) -> list[float]:
    found = trace.frame.query("op == @op and worker == @worker")["end_s"]
    return [float(end) for end in found]


def wait_free(layers: tuple[LayerProfile, ...], workers: int, bandwidth: float) -> float:
    """When the gradients of a backward that begins at 0 are summed, layer by layer.

    A layer's 2 (r - 1) / r |w| bytes set out when its backward and the layer behind it are through.
    """
    now = free = 0.0
    for layer in reversed(layers):
        now += layer.backward_s
        size = 2 * (workers - 1) / workers * layer.parameter_bytes
        if size:
            free = max(now, free) + size / bandwidth
    return max(now, free)


@given(
    st.integers(2, 5),
    st.lists(st.tuples(seconds, seconds, st.integers(0, 900).map(float)), min_size=1, max_size=5),
)
def test_data_parallelism_takes_its_forward_backward_and_what_does_not_overlap(
    workers: int, costs: list[tuple[float, float, float]]
) -> None:
    layers = tuple(
        LayerProfile(str(i), f, b, parameter_bytes=w, update_s=0.5)
        for i, (f, b, w) in enumerate(costs)
    )
    schedule = pipedream([workers]).take(3 * workers)
    trace = simulate(
        schedule, Profile(layers), plan_for(schedule, [len(layers)]), cluster=flat(workers, 100.0)
    )
    forward = sum(layer.forward_s for layer in layers)
    turn = forward + wait_free(layers, workers, 100.0) + 0.5 * len(layers)
    for worker in range(workers):
        assert ends(trace, "UPDATE", worker) == pytest.approx([turn, 2 * turn, 3 * turn])


@given(st.integers(2, 4), st.integers(1, 4), st.integers(1, 12))
def test_bytes_are_those_of_all_reduce(workers: int, stages: int, minibatches: int) -> None:
    """4 (m - 1) |w| / m sent and received by each worker of a stage, an update."""
    schedule = pipedream([workers] * stages).take(minibatches * workers)
    profile = Profile.uniform(stages, parameter_bytes=300.0)
    trace = simulate(schedule, profile, cluster=flat(workers * stages, 1e6))
    assert trace.transfers is not None
    weights = trace.transfers.query("purpose == 'weights'")
    assert weights["bytes"].eq(2 * (workers - 1) / workers * 300).all()
    for way in ("source", "destination"):
        assert weights.groupby(way).size().tolist() == [minibatches] * workers * stages


@given(st.integers(2, 4), st.integers(1, 4), seconds, seconds, st.integers(0, 99).map(float))
def test_one_stage_of_2bw_hides_its_sums_behind_the_next_batch(
    width: int, microbatches: int, forward: float, backward: float, sum_s: float
) -> None:
    """Two batches, of which the first's sum is under way during the second; then only sums."""
    batch = microbatches * (forward + backward)
    size = sum_s * width / (2 * (width - 1))  # at 1 byte/s
    layer = LayerProfile("layer", forward, backward, parameter_bytes=size)
    schedule = replicate(two_bw(1, microbatches).take(3), width)
    plan = Plan.by_hand([1], replicas=[width])
    trace = simulate(schedule, Profile((layer,)), plan, flat(width, 1.0))
    period = max(batch, sum_s)
    expected = [batch + period, batch + 2 * period, batch + 2 * period + sum_s]
    assert ends(trace, "UPDATE") == pytest.approx(expected)


@pytest.mark.parametrize(("microbatches", "sum_s"), [(4, 3.0), (4, 60.0), (6, 9.0), (6, 20.0)])
def test_a_first_stage_has_fewer_microbatches_to_hide_sums(microbatches: int, sum_s: float) -> None:
    """It admits d - 1 microbatches of the batch that needs the sum before the last one's end."""
    depth = 4
    layer = LayerProfile("layer", 1, 2, parameter_bytes=sum_s)  # on 2 workers, at 1 byte/s
    two_levels = Cluster("", V100, (Level("sums", 2, 1.0), Level("messages", depth, math.inf)))
    schedule = replicate(two_bw(depth, microbatches).take(6), 2)
    trace = simulate(
        schedule, Profile((layer,) * depth), plan_for(schedule, [1] * depth), two_levels
    )
    last = ends(trace, "BACKWARD", worker=2 * depth - 1)[microbatches - 1 :: microbatches]
    period = max(3 * microbatches, sum_s + 3 * (depth - 1))
    assert last[4] - last[2] == pytest.approx(2 * period)


def test_a_message_that_is_ready_before_a_sum_need_not_wait_for_it() -> None:
    """Worker 1's backward ends 1 s before that of worker 2, with which its sum begins."""
    layers = (
        LayerProfile("first", 1, 2, output_bytes=1),
        LayerProfile("second", 1, 2, parameter_bytes=1000),
    )
    trace = simulate(pipedream([1, 2]).take(2), Profile(layers), cluster=flat(3, 100.0))
    done = trace.frame.query("worker == 1 and op == 'BACKWARD'")["end_s"].iloc[0]
    sent = trace.transfers
    assert sent is not None
    gradient = sent.query("source == 1 and purpose == 'gradient'")["start_s"].iloc[0]
    weights = sent.query("source == 1 and purpose == 'weights'")["start_s"].iloc[0]
    assert gradient == done < weights


@given(st.integers(1, 5), st.integers(1, 5), st.integers(0, 5))
def test_asp_never_waits(workers: int, rounds: int, more: int) -> None:
    schedule = asp(workers, delay=workers - 1 + more).take(workers * rounds)
    trace = simulate(schedule, Profile.uniform(1, 1, 2, parameter_bytes=100))
    for worker in range(workers):
        assert ends(trace, "BACKWARD", worker) == [3 * (r + 1) for r in range(rounds)]
    assert trace.makespan_s == 3 * rounds


def test_a_replica_keeps_its_gradients_until_all_have_theirs() -> None:
    """Worker 0 is through at 6, worker 1 at 9, when both update."""
    layers = (
        LayerProfile("first", 1, 2, parameter_bytes=100),
        LayerProfile("second", 1, 2, parameter_bytes=10),
    )
    trace = simulate(pipedream([2, 1]).take(2), Profile(layers))
    assert trace.memory is not None
    own = trace.memory.frame.query("worker == 0").set_index("time_s")["gradients"]
    begin, end = trace.frame.query("worker == 0 and op == 'BACKWARD'")[["start_s", "end_s"]].iloc[0]
    made = ends(trace, "UPDATE")[0]
    assert made == ends(trace, "UPDATE", worker=1)[0] > end
    assert own[begin] == own[end] == 100
    assert own[made] == 0


def test_who_has_no_gradient_of_its_own_still_has_the_others_in_an_update() -> None:
    """Worker 1 holds the gradient of minibatch 1 while it makes update 1 with that of 0."""
    layer = LayerProfile("layer", 1, 2, parameter_bytes=100, update_s=1)
    trace = simulate(asp(2).take(2), Profile((layer,)))
    assert trace.memory is not None
    gradients = trace.memory.frame.groupby("worker")["gradients"]
    assert gradients.max().tolist() == [100, 200]
    assert gradients.last().tolist() == [0, 0]
