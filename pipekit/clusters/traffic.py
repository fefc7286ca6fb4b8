"""Who uses which link until when: messages take turns, first come, first served."""

import math
from collections.abc import Sequence
from typing import NamedTuple

from pipekit.clusters.cluster import Cluster, Level


class Transfer(NamedTuple):
    """When a message is on its link, and when it is there: all in seconds."""

    start: float
    end: float
    arrival: float


def all_reduce_bytes(size: float, workers: int) -> float:
    """Return what each of m workers sends, and receives: 2 (m - 1) / m of it (PipeDream, 3.2)."""
    return 2 * (workers - 1) / workers * size


class _Route(NamedTuple):
    """The ports that a message passes, by number: out, then in; on a shared medium none in."""

    out: tuple[int, ...]
    into: tuple[int, ...]
    bandwidth: float
    latency: float


class Traffic:
    """The links of a cluster in use.

    At the level that joins two workers, each member has a port out and a port in, or all share one
    medium (:class:`Level`).  A message occupies each of its ports for bytes / bandwidth, as soon as
    that is free: while a receiver's port is busy with others, the network between keeps what has
    left the sender's.  It arrives one latency later.  The links below that level are taken to be no
    bottleneck.

    Args:
        cluster: whose links.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._free: list[float] = []
        self._numbers: dict[tuple[str, int, str], int] = {}
        self._routes: dict[tuple[int, int], _Route] = {}

    def send(self, source: int, destination: int, size: float, now: float) -> Transfer:
        """Take the link for a message of ``size`` bytes that is ready ``now`` (seconds)."""
        route = self._routes.get((source, destination))
        if route is None:
            level = self._cluster.level_between(source, destination)
            ports = self._both_ways(level, [source], [destination])
            route = _Route(*ports, level.used_bandwidth, level.latency_s)
            self._routes[source, destination] = route
        return self._take(route, size, now)

    def all_reduce(self, workers: Sequence[int], size: float, now: float) -> Transfer:
        """Take the links for a ring all-reduce of ``size`` bytes among ``workers``.

        Each of r members sends and receives 2 (r - 1) / r of it, over the outermost level that
        joins them (r then counts workers, as a ring passes each once).
        """
        first, *others = workers
        if not others:
            return Transfer(now, now, now)
        level = max(
            (self._cluster.level_between(first, other) for other in others),
            key=self._cluster.levels.index,
        )
        ports = self._both_ways(level, workers, workers)
        route = _Route(*ports, level.used_bandwidth, 2 * len(others) * level.latency_s)
        return self._take(route, all_reduce_bytes(size, len(workers)), now)

    def _take(self, route: _Route, size: float, now: float) -> Transfer:
        seconds = 0.0 if math.isinf(route.bandwidth) else size / route.bandwidth
        starts = [self._occupy(port, now, seconds) for port in route.out]
        leaves = min(starts)
        starts += [self._occupy(port, leaves, seconds) for port in route.into]
        end = max(starts) + seconds
        return Transfer(leaves, end, end + route.latency)

    def _occupy(self, port: int, earliest: float, seconds: float) -> float:
        """Take a port as soon as it is free, and return when that is."""
        start = max(earliest, self._free[port])
        self._free[port] = start + seconds
        return start

    def _both_ways(
        self, level: Level, sources: Sequence[int], destinations: Sequence[int]
    ) -> tuple[tuple[int, ...], tuple[int, ...]]:
        out, into = self._ports(level, sources, "out"), self._ports(level, destinations, "in")
        return tuple(out), tuple(into) if not level.shared else ()

    def _ports(self, level: Level, workers: Sequence[int], way: str) -> list[int]:
        if level.shared:
            keys = {
                (level.name, worker // self._cluster.group_size(level), "") for worker in workers
            }
        else:
            keys = {(level.name, self._cluster.member(worker, level), way) for worker in workers}
        return [self._number(key) for key in sorted(keys)]

    def _number(self, key: tuple[str, int, str]) -> int:
        if key not in self._numbers:
            self._numbers[key] = len(self._free)
            self._free.append(0.0)
        return self._numbers[key]
