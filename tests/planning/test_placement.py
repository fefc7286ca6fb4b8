"""Which links parallel pipelines use: workers 0 to 3 are the first server, 4 to 7 the second."""

import math
from collections.abc import Callable, Sequence
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipekit.clusters import Cluster, Device, Level
from pipekit.clusters.cluster import AllReduce
from pipekit.clusters.traffic import Flow, Traffic
from pipekit.planning.sweep import Placement

NVLINK = Level("NVLink", 4, 100.0)
NETWORK = Level("network", 2, 2.0)
SERVERS = Cluster("two servers", Device("any", math.inf, {}, math.inf), (NVLINK, NETWORK))


def test_replicas_on_two_servers_use_the_network() -> None:
    assert Placement(SERVERS, 8, 1).reducing.tolist() == [2 * 7 / 8 / 2.0]
    # Replicas 0-2, 3-5: only the second stage's are on both servers.
    assert Placement(SERVERS, 3, 2).reducing.tolist() == pytest.approx([4 / 3 / 100, 4 / 3 / 2])


def test_pipelines_that_leave_a_server_together_share_its_link() -> None:
    assert Placement(SERVERS, 4, 2).passing.tolist() == [4 / 2]
    assert Placement(SERVERS, 2, 4).passing.tolist() == [1 / 100, 2 / 2, 1 / 100]


@st.composite
def clusters(draw: st.DrawFn) -> Cluster:
    """Draw clusters of one or two levels, of every kind of link and every way of summing."""
    levels = tuple(
        Level(
            f"level {number}",
            draw(st.integers(2, 4)),
            draw(st.sampled_from([1.0, 3.0, 50.0])),
            shared=draw(st.booleans()),
            duplex=draw(st.booleans()),
        )
        for number in range(draw(st.integers(1, 2)))
    )
    ways = st.sampled_from(get_args(AllReduce))
    return Cluster("drawn", SERVERS.device, levels, all_reduce=draw(ways))


@given(clusters(), st.data())
def test_it_says_what_the_simulator_finds(cluster: Cluster, data: st.DataObject) -> None:
    depth = data.draw(st.integers(1, cluster.workers))
    width = data.draw(st.integers(1, cluster.workers // depth))
    placement, size = Placement(cluster, width, depth), 6.0
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


def test_the_other_orientation_would_be_slower() -> None:
    """PipeDream-2BW, section 3.3: an all-reduce between servers costs 50 times as much here."""
    inside = Placement(SERVERS, 4, 2).reducing[0]
    across = 2 * 3 / 4 / NETWORK.bandwidth
    assert across / inside == pytest.approx(50)
