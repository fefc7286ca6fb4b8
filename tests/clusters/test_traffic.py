"""Links in use: ports, shares of bandwidth, media, levels, and sums of gradients."""

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipekit.clusters import Cluster, Device, Level, flat
from pipekit.clusters.traffic import Flow, Path, Traffic, fair_rates
from tests.clusters.water_filling import Sent, by_programmes, by_steps, ends

DEVICE = Device("any", math.inf, {}, math.inf)
SERVERS = Cluster("c", DEVICE, (Level("inside", 2, 100.0), Level("network", 2, 10.0)))


def bus(workers: int) -> Cluster:
    return Cluster("c", DEVICE, (Level("bus", workers, 100.0, shared=True),))


def times(cluster: Cluster, *sent: tuple[int, int, float, float]) -> list[float]:
    """When messages (source, destination, bytes, when they set out) are through."""
    traffic, flows = Traffic(cluster), []
    for source, destination, size, now in sent:
        traffic.run_until(now)
        flows.append(traffic.send(source, destination, size, now))
    traffic.run_until(1e9)
    assert all(flow.done for flow in flows)
    return [flow.end for flow in flows]


def summed(cluster: Cluster, members: list[int], size: float) -> float:
    traffic = Traffic(cluster)
    flow = traffic.all_reduce(members, size, 0.0)
    traffic.run_until(1e9)
    return flow.arrival


def test_a_message_takes_bytes_over_bandwidth_and_arrives_a_latency_later() -> None:
    traffic = Traffic(Cluster("c", DEVICE, (Level("link", 2, 100.0, latency_s=0.5),)))
    flow = traffic.send(0, 1, 200, now=1.0)
    assert (flow.start, traffic.soonest, flow.arrival, flow.done) == (1.0, 3.0, 3.5, False)
    traffic.run_until(3.0)
    assert flow.done


def test_what_waits_for_its_connection_has_not_set_out() -> None:
    traffic = Traffic(flat(2, 100.0))
    first, second, third = (traffic.send(0, 1, size, 0.0) for size in (100, 0, 100))
    assert (first.start, second.start, third.start) == (0, math.inf, math.inf)
    traffic.run_until(5.0)
    assert (second.start, second.end) == (1, 1)
    assert (third.start, third.end) == (1, 2)


def test_what_is_to_follow_is_called_once_when_it_ends() -> None:
    traffic, called = Traffic(flat(2, 100.0)), list[Flow]()
    flow = traffic.send(0, 1, 100, 0.0, called.append)
    assert called == []
    traffic.finish_next()
    assert called == [flow]
    assert traffic.send(0, 1, 0, 1.0, called.append).done, "nothing to send takes no time"
    assert len(called) == 2


@pytest.mark.parametrize(("members", "seconds"), [(2, 1.0), (4, 1.5)])
@pytest.mark.parametrize("way", ["ring", "sharded parameter server"])
def test_each_sends_twice_all_but_one_share(way: str, members: int, seconds: float) -> None:
    cluster = replace(flat(4, 100.0), all_reduce=way)  # type: ignore[arg-type]  # a test's words
    assert summed(cluster, list(range(members)), 100) == pytest.approx(seconds)


def test_a_parameter_servers_own_link_carries_everybodys_gradients() -> None:
    cluster = replace(flat(4, 100.0), all_reduce="parameter server")
    assert summed(cluster, [0, 1, 2, 3], 100) == 3.0, "and the weights, on its way out"


def test_on_a_bus_a_ring_passes_for_every_member() -> None:
    assert summed(bus(4), [0, 1, 2, 3], 100) == 6.0


def test_a_ring_goes_at_the_pace_of_its_outermost_level_which_it_enters_once() -> None:
    assert summed(SERVERS, [0, 1], 100) == 1.0
    assert summed(SERVERS, [0, 1, 2, 3], 100) == 15.0
    assert summed(SERVERS, [0, 2, 1, 3], 100) == 15.0


@pytest.mark.parametrize(
    ("way", "hops"), [("ring", 6), ("parameter server", 2), ("sharded parameter server", 2)]
)
def test_the_latency_of_a_sum_is_that_of_its_hops(way: str, hops: int) -> None:
    level = Level("link", 4, math.inf, latency_s=0.5)
    cluster = Cluster("c", DEVICE, (level,), way)  # type: ignore[arg-type]
    assert summed(cluster, [0, 1, 2, 3], 100) == 0.5 * hops


@pytest.mark.parametrize("way", ["ring", "parameter server", "sharded parameter server"])
def test_the_pairs_of_a_sum_send_its_bytes(way: str) -> None:
    traffic = Traffic(replace(flat(4, 100.0), all_reduce=way))  # type: ignore[arg-type]
    assert sum(each for *_, each in traffic.pairs([0, 1, 2, 3], 100)) == pytest.approx(600)


@pytest.mark.parametrize(("way", "end"), [("ring", 2.0), ("sharded parameter server", 4.0)])
def test_a_servers_many_connections_leave_a_message_less(way: str, end: float) -> None:
    """Beside one neighbour of a ring a message has half the link, beside three others a quarter."""
    cluster = replace(flat(4, 100.0), all_reduce=way)  # type: ignore[arg-type]
    traffic = Traffic(cluster)
    traffic.all_reduce([0, 1, 2, 3], 1e6, 0.0)
    assert traffic.send(0, 2, 100, 0.0).end == pytest.approx(end)


uses = st.dictionaries(st.integers(0, 3), st.sampled_from([0.5, 1.0, 2.0]), min_size=1)


@settings(max_examples=15)
@given(
    st.lists(st.tuples(uses, st.sampled_from([1.0, 2.0, 3.0])), min_size=1, max_size=5),
    st.lists(st.sampled_from([1.0, 2.0, 5.0]), min_size=4, max_size=4),
)
def test_rates_are_max_min_fair(
    flows: list[tuple[dict[int, float], float]], room: list[float]
) -> None:
    paths = [Path(tuple(use.items()), weight, 1.0, 0.0, 1.0, {}) for use, weight in flows]
    expected = by_programmes([u for u, _ in flows], [w for _, w in flows], dict(enumerate(room)))
    assert fair_rates(paths, room) == pytest.approx(expected, rel=1e-5)


messages = st.lists(
    st.tuples(
        st.permutations(range(5)), st.integers(0, 20).map(float), st.integers(1, 500).map(float)
    ),
    min_size=1,
    max_size=12,
)


@given(messages, st.sampled_from(["flat", "bus", "servers"]))
def test_any_messages_end_when_all_rates_found_anew_at_every_change_say(
    drawn: list[tuple[list[int], float, float]], kind: str
) -> None:
    """Ports are told anew: out and in of five workers; of the servers, which are 0-2 and 3-5."""
    level = Level("link", 5, 100.0, shared=kind == "bus")
    levels = (Level("in", 3, 100.0), Level("out", 2, 50.0)) if kind == "servers" else (level,)
    cluster, capacity, sent = Cluster("c", DEVICE, levels), dict[int, float](), []
    drawn = sorted(drawn, key=lambda one: one[1])
    for (source, destination, *_), start, size in drawn:
        ports, room = {2 * source, 2 * destination + 1}, 100.0
        if kind == "bus":
            ports = {0}
        elif kind == "servers" and source // 3 != destination // 3:
            ports, room = {100 + source // 3, 200 + destination // 3}, 50.0
        capacity |= dict.fromkeys(ports, room)
        sent.append(Sent(start, size, dict.fromkeys(ports, 1.0), (source, destination)))
    found = times(cluster, *((p[0], p[1], size, start) for p, start, size in drawn))
    assert found == pytest.approx(ends(sent, capacity), rel=1e-6)


def test_the_textbook_line_of_links() -> None:
    """A flow over two links beside one on each, of which the second has more room."""
    uses = [{0: 1.0, 1: 1.0}, {0: 1.0}, {1: 1.0}]
    assert by_steps(uses, [1, 1, 1], {0: 1.0, 1: 3.0}) == pytest.approx([0.5, 0.5, 2.5])


def test_two_connections_on_one_link_by_hand() -> None:
    """Alone until 1, half each until the shorter has gone, then alone again."""
    port = {0: 1.0}
    sent = [Sent(0, 200, port, "a"), Sent(1, 50, port, "b")]
    assert ends(sent, {0: 100.0}) == pytest.approx([2.5, 2.0])


def test_messages_of_one_connection_follow_one_another() -> None:
    port = {0: 1.0}
    sent = [Sent(0, 200, port, "a"), Sent(1, 50, port, "a"), Sent(1, 50, port, "a")]
    assert ends(sent, {0: 100.0}) == pytest.approx([2.0, 2.5, 3.0])


@settings(max_examples=15)
@given(
    st.lists(st.tuples(uses, st.sampled_from([1.0, 2.0, 3.0])), min_size=1, max_size=4),
    st.lists(st.sampled_from([1.0, 2.0, 5.0]), min_size=4, max_size=4),
)
def test_both_ways_agree(flows: list[tuple[dict[int, float], float]], room: list[float]) -> None:
    used, weights = [use for use, _ in flows], [weight for _, weight in flows]
    capacity = dict(enumerate(room))
    expected = by_programmes(used, weights, capacity)
    assert by_steps(used, weights, capacity) == pytest.approx(expected, rel=1e-5)
