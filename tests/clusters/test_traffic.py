"""Links in use: ports, turns, shared media, levels."""

import math

import pytest

from pipekit.clusters import Cluster, Device, Level, flat
from pipekit.clusters.traffic import Traffic

DEVICE = Device("any", math.inf, {}, math.inf)


def test_a_message_takes_bytes_over_bandwidth_and_arrives_a_latency_later() -> None:
    cluster = Cluster("c", DEVICE, (Level("link", 2, 100.0, latency_s=0.5),))
    assert Traffic(cluster).send(0, 1, 200, now=1.0) == (1.0, 3.0, 3.5)


def test_messages_of_one_sender_take_turns() -> None:
    traffic = Traffic(flat(3, 100.0))
    assert traffic.send(0, 1, 100, now=0.0).end == 1.0
    assert traffic.send(0, 2, 100, now=0.0) == (1.0, 2.0, 2.0)


def test_messages_to_one_receiver_take_turns() -> None:
    traffic = Traffic(flat(3, 100.0))
    traffic.send(0, 2, 100, now=0.0)
    assert traffic.send(1, 2, 100, now=0.5) == (0.5, 2.0, 2.0)


def test_a_sender_whose_receiver_is_busy_may_send_to_others() -> None:
    traffic = Traffic(flat(4, 100.0))
    traffic.send(0, 2, 100, now=0.0)
    traffic.send(1, 2, 100, now=0.0)
    assert traffic.send(1, 3, 100, now=0.0) == (1.0, 2.0, 2.0)


def test_a_ring_waits_for_its_busiest_port_and_leaves_the_others_free_before() -> None:
    traffic = Traffic(flat(3, 100.0))
    traffic.send(0, 2, 100, now=0.0)
    assert traffic.all_reduce([0, 1], 100, now=0.0) == (0.0, 2.0, 2.0)
    assert traffic.send(1, 2, 100, now=0.0) == (1.0, 2.0, 2.0)


def test_both_ways_at_once_are_free_of_each_other() -> None:
    traffic = Traffic(flat(2, 100.0))
    traffic.send(0, 1, 100, now=0.0)
    assert traffic.send(1, 0, 100, now=0.0) == (0.0, 1.0, 1.0)


def test_on_a_shared_medium_everybody_takes_turns() -> None:
    traffic = Traffic(Cluster("c", DEVICE, (Level("bus", 4, 100.0, shared=True),)))
    traffic.send(0, 1, 100, now=0.0)
    assert traffic.send(3, 2, 100, now=0.0) == (1.0, 2.0, 2.0)


def test_two_groups_have_a_bus_each() -> None:
    bus, network = Level("bus", 2, 100.0, shared=True), Level("network", 2, 10.0)
    traffic = Traffic(Cluster("c", DEVICE, (bus, network)))
    traffic.send(0, 1, 100, now=0.0)
    assert traffic.send(2, 3, 100, now=0.0) == (0.0, 1.0, 1.0)


def test_workers_of_a_server_share_its_way_out() -> None:
    cluster = Cluster("c", DEVICE, (Level("inside", 2, 100.0), Level("network", 2, 10.0)))
    traffic = Traffic(cluster)
    assert traffic.send(0, 2, 100, now=0.0).end == 10.0
    assert traffic.send(1, 3, 100, now=0.0).start == 10.0
    assert traffic.send(0, 1, 100, now=0.0).end == 1.0, "links inside are others"


@pytest.mark.parametrize(("members", "seconds"), [(1, 0.0), (2, 1.0), (4, 1.5)])
def test_a_ring_sends_twice_all_but_one_share(members: int, seconds: float) -> None:
    sent = Traffic(flat(4, 100.0)).all_reduce(range(members), 100, now=0.0)
    assert sent.end == pytest.approx(seconds)


def test_a_ring_goes_at_the_pace_of_its_outermost_level() -> None:
    cluster = Cluster("c", DEVICE, (Level("inside", 2, 100.0), Level("network", 2, 10.0)))
    assert Traffic(cluster).all_reduce([0, 1], 100, now=0.0).end == 1.0
    assert Traffic(cluster).all_reduce([0, 1, 2, 3], 100, now=0.0).end == 15.0


def test_free_links_cost_nothing() -> None:
    assert Traffic(flat(2, math.inf)).send(0, 1, 10**12, now=2.0) == (2.0, 2.0, 2.0)
