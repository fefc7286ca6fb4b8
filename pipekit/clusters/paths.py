"""Which ports of a cluster a message passes, or a sum of gradients, and how flows share them."""

from collections.abc import Mapping, Sequence
from itertools import permutations
from typing import NamedTuple

from pipekit.clusters.cluster import Cluster

PortUse = tuple[tuple[int, float], ...]
"""Ports by number, and what passes each of them for each byte of a flow."""


def all_reduce_bytes(size: float, workers: int) -> float:
    """Return what each of m workers sends, and receives: 2 (m - 1) / m of it (PipeDream, 3.2)."""
    return 2 * (workers - 1) / workers * size


class Path(NamedTuple):
    """What a message or a sum passes."""

    ports: PortUse
    weight: float  # as how many connections it counts beside others
    alone: float  # bytes/s of the flow if nobody else uses its ports
    latency_s: float
    flow: float  # bytes of the flow for each byte of the message, or of the gradients
    pairs: Mapping[tuple[int, int], float]  # who sends to whom, for each byte of the flow


class Paths:
    """The ports of a cluster, numbered as they are first used.

    At the level that joins two workers, each member has a port out and a port in; one port for both
    ways if the level is not duplex; or all members have one medium (:class:`.cluster.Level`).  The
    links below that level are taken to be no bottleneck.  ``capacity`` has bytes/s of each port.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._numbers: dict[tuple[str, int, str], int] = {}
        self._paths: dict[tuple[int, ...], Path] = {}
        self._sums: dict[tuple[int, ...], Path] = {}
        self.capacity: list[float] = []

    def message(self, source: int, destination: int) -> Path:
        """Return the path of a message from one worker to another."""
        ends = source, destination
        if ends not in self._paths:
            self._paths[ends] = self._path({ends: 1}, 1, 1, 1.0, 1)
        return self._paths[ends]

    def all_reduce(self, workers: Sequence[int]) -> Path:
        """Return the path of a sum over two workers or more, in the cluster's way of summing."""
        members = tuple(sorted(workers))
        if members not in self._sums:
            self._sums[members] = self._sum(members)
        return self._sums[members]

    def _sum(self, members: tuple[int, ...]) -> Path:
        others = len(members) - 1
        each = all_reduce_bytes(1.0, len(members))
        if self._cluster.all_reduce == "ring":
            ring = {(worker, members[place - others]): 1 for place, worker in enumerate(members)}
            return self._path(ring, 1, 1, each, 2 * others)
        if self._cluster.all_reduce == "parameter server":
            server, *workers = members
            star = {pair: 1 for worker in workers for pair in ((worker, server), (server, worker))}
            return self._path(star, 1, 1, 1.0, 2)
        # Each worker sends every other its share of the gradients, and then of the new weights.
        return self._path(dict.fromkeys(permutations(members, 2), 1), others, others, each, 2)

    def _path(
        self,
        pairs: Mapping[tuple[int, int], int],
        divisor: int,
        weight: int,
        flow: float,
        hops: int,
    ) -> Path:
        passing: dict[int, int] = {}
        latency = 0.0
        for source, destination in pairs:
            level = self._cluster.level_between(source, destination)
            latency = max(latency, level.latency_s)
            for port in self._ports(source, destination):
                passing[port] = passing.get(port, 0) + 1
        ports = tuple((port, count / divisor) for port, count in sorted(passing.items()))
        alone = min(self.capacity[port] / share for port, share in ports)
        shares = {pair: count / divisor for pair, count in pairs.items()}
        return Path(ports, weight, alone, hops * latency, flow, shares)

    def _ports(self, source: int, destination: int) -> list[int]:
        """Return the ports of a message: out of its sender, into its receiver."""
        level = self._cluster.level_between(source, destination)
        if level.shared:
            keys = [(level.name, source // self._cluster.group_size(level), "medium")]
        else:
            ways = ("out", "in") if level.duplex else ("link", "link")
            ends = (self._cluster.member(worker, level) for worker in (source, destination))
            keys = [(level.name, end, way) for end, way in zip(ends, ways, strict=True)]
        return [self._number(key, level.used_bandwidth) for key in keys]

    def _number(self, key: tuple[str, int, str], bandwidth: float) -> int:
        if key not in self._numbers:
            self._numbers[key] = len(self.capacity)
            self.capacity.append(bandwidth)
        return self._numbers[key]


def fair_rates(flows: Sequence[Path], capacity: Sequence[float]) -> list[float]:
    """Return the bytes/s of each flow: no rate can rise without a lower one falling.

    All rise together, each by its weight.  When a port is full, those that pass it stay, and the
    others go on (Bertsekas and Gallager, "Data Networks", section 6.5.2).
    """
    users: dict[int, list[int]] = {}
    load: dict[int, float] = {}  # what passes a port when all that still rise have their weight
    for number, flow in enumerate(flows):
        for port, share in flow.ports:
            users.setdefault(port, []).append(number)
            load[port] = load.get(port, 0.0) + flow.weight * share
    room = {port: capacity[port] for port in users}
    rising = {port: len(numbers) for port, numbers in users.items()}
    rates = [-1.0] * len(flows)
    level = 0.0
    while rising:
        tight = min(rising, key=lambda port: room[port] / load[port])
        level = max(level, room[tight] / load[tight])  # else rounding could lower it
        for number in users[tight]:
            if rates[number] >= 0:
                continue
            flow = flows[number]
            rates[number] = flow.weight * level
            for port, share in flow.ports:
                room[port] -= rates[number] * share
                load[port] -= flow.weight * share
                rising[port] -= 1
                if not rising[port]:
                    del rising[port]
    return rates
