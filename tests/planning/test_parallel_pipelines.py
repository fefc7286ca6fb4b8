"""PipeDream-2BW's planner against the equations, written out for one configuration at a time."""

import math
from collections.abc import Callable, Sequence
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipekit import simulate
from pipekit.clusters import Cluster, Device, Level, flat
from pipekit.clusters.cluster import AllReduce
from pipekit.clusters.traffic import Flow, Traffic
from pipekit.planning import parallel_pipelines, sweep
from pipekit.planning.sweep import block_balance, placed
from pipekit.plans import Plan, Recompute
from pipekit.profiling import LayerProfile, Profile
from pipekit.schedules import replicate, two_bw

GB = 1e9


def gpt(blocks: int) -> Profile:
    """Return a GPT of the paper's proportions: 3 ms a block and row, parameters of 2 bytes."""
    block = LayerProfile("block", 1e-3, 2e-3, 2e6, 100e6, 30e6, True)
    embedding = LayerProfile("embedding", 1e-4, 1e-4, 2e6, 200e6, 0.0)
    norm = LayerProfile("norm", 1e-5, 1e-5, 2e6, 1e4, 2e6, True)
    head = LayerProfile("head", 1e-3, 2e-3, 50e6, 200e6, 50e6, True)
    return Profile((embedding, *[block] * blocks, norm, head), input_bytes=4e3)


def test_blocks_are_shared_out_equally() -> None:
    profile = gpt(24)
    assert block_balance(profile, 4) == [1 + 6, 6, 6, 6 + 2]
    assert block_balance(profile, 1) == [27]


def test_of_equal_throughput_the_largest_microbatch_that_fits() -> None:
    """PipeDream-2BW, section 4.1."""
    profile = Profile.uniform(2, output_bytes=1.0)
    free = parallel_pipelines(profile, flat(1, math.inf), max_batch=20)
    tight = parallel_pipelines(profile, flat(1, math.inf, memory=12.0), max_batch=20)
    assert (free.microbatch_rows, free.microbatches) == (16, 1)
    assert (tight.microbatch_rows, tight.microbatches) == (4, 5)
    assert free.stages[0].recompute == "never"


@pytest.mark.parametrize(("width", "depth"), [(1, 4), (2, 2), (3, 1)])
@pytest.mark.parametrize("recompute", ["never", "always"])
def test_a_plan_takes_in_simulation_what_was_predicted(
    width: int, depth: int, recompute: Recompute
) -> None:
    """Seconds a microbatch where links are free, and bytes of every worker."""
    layers = [LayerProfile(str(i), 1.0, 2.0, 2.0, 4.0 + i % 2, 7.0, i % 2 == 0) for i in range(4)]
    profile = Profile(tuple(layers), input_bytes=3.0)
    whole = sweep(profile, flat(width * depth, math.inf), max_batch=8 * width)
    row = whole[
        (whole["width"] == width)
        & (whole["depth"] == depth)
        & (whole["microbatch_rows"] == 1)
        & (whole["recompute"] == (recompute == "always"))
    ].iloc[0]
    plan = Plan.by_hand(
        block_balance(profile, depth), replicas=[width] * depth, recompute=recompute
    )
    schedule = replicate(two_bw(depth, int(row["microbatches"])), width).take(4)
    trace = simulate(schedule, profile, plan, optimizer_states=2)
    frame = trace.frame
    ends = frame[(frame["op"] == "BACKWARD") & (frame["worker"] == 0)]["end_s"].to_numpy()
    m = int(row["microbatches"])
    assert (ends[3 * m - 1] - ends[m - 1]) / (2 * m) == pytest.approx(row["seconds"])
    assert trace.memory is not None
    assert max(trace.memory.peak_bytes) == row["memory_bytes"]


def test_the_memory_that_the_error_asks_for_is_enough() -> None:
    profile = gpt(8)
    with pytest.raises(ValueError, match="give each at least") as caught:
        parallel_pipelines(profile, flat(4, GB, memory=1e9), max_batch=16)
    least = int(str(caught.value).partition("at least ")[2].partition(" bytes")[0].replace(",", ""))
    assert parallel_pipelines(profile, flat(4, GB, memory=least), max_batch=16).workers == 4
    with pytest.raises(ValueError, match="no plan fits"):
        parallel_pipelines(profile, flat(4, GB, memory=least - 1), max_batch=16)


def test_a_batch_smaller_than_every_microbatch() -> None:
    with pytest.raises(ValueError, match="max_batch 2 holds no microbatch of 4 rows: use at least"):
        parallel_pipelines({4: Profile.uniform(2).scaled(4)}, flat(2, GB), max_batch=2)
    with pytest.raises(ValueError, match="use at least 1"):
        parallel_pipelines(Profile.uniform(2), flat(2, GB), max_batch=0)


NVLINK = Level("NVLink", 4, 100.0)
NETWORK = Level("network", 2, 2.0)
SERVERS = Cluster("two servers", Device("any", math.inf, {}, math.inf), (NVLINK, NETWORK))


def test_what_leaves_a_server_uses_the_network_and_shares_its_link() -> None:
    assert placed(SERVERS, 8, 1).reducing.tolist() == [2 * 7 / 8 / 2.0]
    # Replicas 0-2, 3-5: only the second stage's are on both servers.
    assert placed(SERVERS, 3, 2).reducing.tolist() == pytest.approx([4 / 3 / 100, 4 / 3 / 2])
    # Within a server (section 3.3); between servers an all-reduce would cost 50 times as much.
    assert placed(SERVERS, 4, 2).reducing.tolist() == pytest.approx([2 * 3 / 4 / 100] * 2)
    assert placed(SERVERS, 4, 2).passing.tolist() == [4 / 2]
    assert placed(SERVERS, 2, 4).passing.tolist() == [1 / 100, 2 / 2, 1 / 100]


@st.composite
def clusters(draw: st.DrawFn) -> Cluster:
    """Draw clusters of one or two levels, of every kind of link and every way of summing."""
    levels = tuple(
        Level(
            f"level {number}",
            draw(st.integers(2, 4)),
            draw(st.sampled_from([1.0, 3.0, 50.0])),
            shared=draw(st.booleans()),
        )
        for number in range(draw(st.integers(1, 2)))
    )
    ways = st.sampled_from(get_args(AllReduce))
    return Cluster("drawn", SERVERS.device, levels, all_reduce=draw(ways))


@given(clusters(), st.data())
def test_it_says_what_the_simulator_finds(cluster: Cluster, data: st.DataObject) -> None:
    depth = data.draw(st.integers(1, cluster.workers))
    width = data.draw(st.integers(1, cluster.workers // depth))
    placement, size = placed(cluster, width, depth), 6.0
    for stage in range(depth):
        replicas = range(stage * width, (stage + 1) * width)
        if width > 1:
            took = ended(cluster, lambda traffic, of: [traffic.all_reduce(of, size, 0.0)], replicas)
            assert placement.reducing[stage] * size == pytest.approx(took)
        if stage + 1 < depth:
            took = ended(
                cluster,
                lambda traffic, of: [traffic.send(one, one + width, size, 0.0) for one in of],
                replicas,
            )
            assert placement.passing[stage] * size == pytest.approx(took)


def ended(
    cluster: Cluster, begin: Callable[[Traffic, Sequence[int]], list[Flow]], workers: Sequence[int]
) -> float:
    """Return when the last of some flows that set out together has ended (simulated)."""
    traffic = Traffic(cluster)
    flows = begin(traffic, workers)
    while not all(flow.done for flow in flows):
        traffic.finish_next()
    return max(flow.end for flow in flows)
