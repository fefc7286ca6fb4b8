"""Which links a message or a sum of gradients passes, and who uses which until when."""

import heapq
import math
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import count, permutations
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
    """The ports of a cluster, numbered as they are first used; ``capacity`` has bytes/s of each.

    At the level that joins two workers, each member has a port out and a port in, or all members
    have one medium.  The links below that level are not a bottleneck.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._numbers: dict[tuple[str, int, str], int] = {}
        self._paths: dict[tuple[int, ...], Path] = {}
        self._sums: dict[tuple[int, ...], Path] = {}
        self.capacity: list[float] = []

    def message(self, source: int, destination: int) -> Path:
        ends = source, destination
        if ends not in self._paths:
            self._paths[ends] = self._path([ends], 1, 1.0, 1)
        return self._paths[ends]

    def all_reduce(self, workers: Sequence[int]) -> Path:
        """Return the path of a sum over two workers or more, in the cluster's way of summing."""
        members = tuple(sorted(workers))
        if members in self._sums:
            return self._sums[members]
        others, each = len(members) - 1, all_reduce_bytes(1.0, len(members))
        if self._cluster.all_reduce == "ring":
            ring = [(worker, members[place - others]) for place, worker in enumerate(members)]
            path = self._path(ring, 1, each, 2 * others)
        elif self._cluster.all_reduce == "parameter server":
            server, *clients = members
            star = [pair for worker in clients for pair in ((worker, server), (server, worker))]
            path = self._path(star, 1, 1.0, 2)
        else:
            # Each sends every other its share of the gradients, and then of the new weights.
            path = self._path([*permutations(members, 2)], others, each, 2)
        self._sums[members] = path
        return path

    def _path(self, pairs: Sequence[tuple[int, int]], weight: int, flow: float, hops: int) -> Path:
        """Return a path on which each pair carries one ``weight``-th of the flow."""
        passing = Counter(port for pair in pairs for port in self._ports(*pair))
        ports = tuple((port, uses / weight) for port, uses in sorted(passing.items()))
        alone = min(self.capacity[port] / share for port, share in ports)
        latency_s = hops * max(self._cluster.level_between(*pair).latency_s for pair in pairs)
        return Path(ports, weight, alone, latency_s, flow, dict.fromkeys(pairs, 1 / weight))

    def _ports(self, source: int, destination: int) -> list[int]:
        level = self._cluster.level_between(source, destination)
        if level.shared:
            keys = [(level.name, source // self._cluster.group_size(level), "medium")]
        else:
            ways = {"out": source, "in": destination}
            keys = [
                (level.name, self._cluster.member(end, level), way) for way, end in ways.items()
            ]
        for key in keys:
            if key not in self._numbers:
                self._numbers[key] = len(self.capacity)
                self.capacity.append(level.used_bandwidth)
        return [self._numbers[key] for key in keys]


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


class Flow:
    """A message or a sum of gradients, which has ended once ``done``; times are in seconds.

    ``start`` is infinite while it waits for others of its connection; at ``end`` its last byte
    leaves, as long as no other flow sets out or ends.  ``line`` has the messages of its connection,
    of which the first is on its way; a sum has its own.
    """

    __slots__ = ("_left", "_rate", "_since", "done", "end", "line", "path", "start", "then")

    def __init__(
        self, path: Path, size: float, then: "Callable[[Flow], object]", line: "deque[Flow]"
    ) -> None:
        self.path, self._left, self._rate = path, path.flow * size, path.alone
        self.start = self.end = self._since = math.inf
        self.done, self.then, self.line = False, then, line

    def begin(self, now: float) -> None:
        """Set out, with all of its links to itself."""
        self.start = self._since = now
        self.end = now + self._left / self._rate  # at once if its links are free: the rate is inf

    @property
    def arrival(self) -> float:
        """When its last byte is there: one latency after :attr:`end`."""
        return self.end + self.path.latency_s

    def change(self, rate: float, now: float) -> bool:
        """Go on at another rate, in bytes/s; return whether it is another one."""
        if rate == self._rate:
            return False
        self._left = max(0.0, self._left - self._rate * (now - self._since))
        self._rate, self._since = rate, now
        self.end = now + self._left / rate
        return True


def _ignore(flow: Flow) -> None:
    pass


class Traffic:
    """The links of a cluster in use, followed in the order of time.

    ``soonest`` is when the next flow ends, if none sets out before; infinite if there is none.
    """

    def __init__(self, cluster: Cluster) -> None:
        self.soonest = math.inf
        self._paths = Paths(cluster)
        self._users: defaultdict[int, list[Flow]] = defaultdict(list)  # of each port
        # When flows would end, with a number that keeps equal times in order; the entries of flows
        # that have changed their rate since stay behind and are passed over.
        self._ends: list[tuple[float, int, Flow]] = []
        self._numbers = count()
        self._lines: defaultdict[tuple[int, int], deque[Flow]] = defaultdict(deque)

    def send(
        self,
        source: int,
        destination: int,
        size: float,
        now: float,
        then: Callable[[Flow], object] = _ignore,
    ) -> Flow:
        """Begin a message of ``size`` bytes, once those before it between the two are through.

        Call :meth:`run_until` first.  ``then`` is called when the flow has ended, perhaps at once.
        """
        line = self._lines[source, destination]
        flow = Flow(self._paths.message(source, destination), size, then, line)
        line.append(flow)
        if len(line) == 1:
            self._begin(flow, now)
        return flow

    def all_reduce(
        self,
        workers: Sequence[int],
        size: float,
        now: float,
        then: Callable[[Flow], object] = _ignore,
    ) -> Flow:
        """Begin a sum over two workers or more, as :meth:`send`; one of 0 bytes is over at once."""
        path = self._paths.all_reduce(workers)
        flow = Flow(path if size else path._replace(latency_s=0.0), size, then, deque())
        flow.line.append(flow)
        self._begin(flow, now)
        return flow

    def pairs(self, workers: Sequence[int], size: float) -> list[tuple[int, int, float]]:
        path = self._paths.all_reduce(workers)
        return [(*pair, share * path.flow * size) for pair, share in path.pairs.items()]

    def run_until(self, now: float) -> None:
        """End all flows that end until ``now``, one after the other."""
        while (end := self.soonest) <= now and end < math.inf:
            self.finish_next()

    def finish_next(self) -> None:
        """End the flow that ends soonest; the others on its links go on faster."""
        now, _, flow = heapq.heappop(self._ends)
        beside: list[Flow] = []
        for port, _ in flow.path.ports:
            users = self._users[port]
            users.remove(flow)
            beside += users
        if beside:
            self._share(beside, now)
        self._end(flow, now)
        self._look_ahead()

    def _begin(self, flow: Flow, now: float) -> None:
        flow.begin(now)
        if flow.end == now:
            self._end(flow, now)
            return
        beside = any(self._users[port] for port, _ in flow.path.ports)
        for port, _ in flow.path.ports:
            self._users[port].append(flow)
        heapq.heappush(self._ends, (flow.end, next(self._numbers), flow))
        if beside:
            self._share([flow], now)
        self._look_ahead()

    def _end(self, flow: Flow, now: float) -> None:
        flow.done = True
        flow.line.popleft()
        if flow.line:
            self._begin(flow.line[0], now)
        flow.then(flow)

    def _look_ahead(self) -> None:
        """Pass over the entries of flows that end at another time by now; see who is next."""
        ends = self._ends
        while ends and (ends[0][2].done or ends[0][0] != ends[0][2].end):
            heapq.heappop(ends)
        self.soonest = ends[0][0] if ends else math.inf

    def _share(self, changed: Iterable[Flow], now: float) -> None:
        """Find new rates for flows and all that share a link with them, or with those who do."""
        met = dict.fromkeys(changed)
        todo = list(met)
        while todo:
            for port, _ in todo.pop().path.ports:
                for flow in self._users[port]:
                    if flow not in met:
                        met[flow] = None
                        todo.append(flow)
        rates = fair_rates([flow.path for flow in met], self._paths.capacity)
        for flow, rate in zip(met, rates, strict=True):
            if flow.change(rate, now):
                heapq.heappush(self._ends, (flow.end, next(self._numbers), flow))
