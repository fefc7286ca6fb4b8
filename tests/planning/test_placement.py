"""Which links parallel pipelines use: workers 0 to 3 are the first server, 4 to 7 the second."""

import math
from dataclasses import replace

import pytest

from pipekit.clusters import Cluster, Device, Level
from pipekit.planning.placement import Placement

NVLINK = Level("NVLink", 4, 100.0)
NETWORK = Level("network", 2, 2.0)
SERVERS = Cluster("two servers", Device("any", math.inf, {}, math.inf), (NVLINK, NETWORK))


def test_replicas_that_share_a_server_use_its_links() -> None:
    assert Placement(SERVERS, 4, 2).reducing.tolist() == [2 * 3 / 4 / 100.0] * 2


def test_replicas_on_two_servers_use_the_network() -> None:
    assert Placement(SERVERS, 8, 1).reducing.tolist() == [2 * 7 / 8 / 2.0]
    # Replicas 0-2, 3-5: only the second stage's are on both servers.
    assert Placement(SERVERS, 3, 2).reducing.tolist() == pytest.approx([4 / 3 / 100, 4 / 3 / 2])


def test_one_replica_reduces_nothing() -> None:
    assert Placement(SERVERS, 1, 8).reducing.tolist() == [0.0] * 8


def test_a_single_pipeline_crosses_the_network_once() -> None:
    slow = [1 / 100, 1 / 100, 1 / 100, 1 / 2, 1 / 100, 1 / 100, 1 / 100]
    assert Placement(SERVERS, 1, 8).passing.tolist() == slow


def test_pipelines_that_leave_a_server_together_share_its_link() -> None:
    assert Placement(SERVERS, 4, 2).passing.tolist() == [4 / 2]
    assert Placement(SERVERS, 2, 4).passing.tolist() == [1 / 100, 2 / 2, 1 / 100]


def test_on_a_shared_medium_all_take_turns() -> None:
    bus = Cluster("bus", SERVERS.device, (replace(NVLINK, shared=True),))
    assert Placement(bus, 2, 2).passing.tolist() == [2 / 100]


def test_the_other_orientation_would_be_slower() -> None:
    """PipeDream-2BW, section 3.3: an all-reduce between servers costs 50 times as much here."""
    inside = Placement(SERVERS, 4, 2).reducing[0]
    across = 2 * 3 / 4 / NETWORK.bandwidth
    assert across / inside == pytest.approx(50)
