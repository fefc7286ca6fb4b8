"""Who uses which link until when: connections that share a link share its bandwidth fairly."""

import heapq
import math
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import count

from pipekit.clusters.cluster import Cluster
from pipekit.clusters.paths import Path, Paths, fair_rates


class Flow:
    """A message, or a sum of gradients, that has ended once ``done``; times are in seconds.

    ``start`` is when it set out, infinite while it waits for others of its connection; ``end`` when
    its last byte leaves, as long as no other flow sets out or ends.  ``line`` has the messages of
    its connection, of which the first is on its way; a sum has its own.
    """

    __slots__ = ("_left", "_rate", "_since", "done", "end", "line", "path", "start", "then")

    def __init__(
        self, path: Path, size: float, then: "Callable[[Flow], None]", line: "deque[Flow]"
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
        self._users: list[list[Flow]] = []  # of each port
        # When flows would end, with a number that keeps equal times in order; the entries of flows
        # that have changed their rate since stay behind and are passed over.
        self._ends: list[tuple[float, int, Flow]] = []
        self._numbers = count()
        self._lines: dict[tuple[int, int], deque[Flow]] = {}

    def send(
        self,
        source: int,
        destination: int,
        size: float,
        now: float,
        then: Callable[[Flow], None] = _ignore,
    ) -> Flow:
        """Begin a message of ``size`` bytes, once those before it between the two are through.

        Call :meth:`run_until` first.  ``then`` is called when the flow has ended, perhaps at once.
        """
        line = self._lines.get((source, destination))
        if line is None:
            line = self._lines[source, destination] = deque()
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
        then: Callable[[Flow], None] = _ignore,
    ) -> Flow:
        """Begin a sum of ``size`` bytes over two workers or more; otherwise as :meth:`send`.

        A sum of 0 bytes is over at once: nobody has to send anything.
        """
        path = self._paths.all_reduce(workers)
        flow = Flow(path if size else path._replace(latency_s=0.0), size, then, deque())
        flow.line.append(flow)
        self._begin(flow, now)
        return flow

    def pairs(self, workers: Sequence[int], size: float) -> list[tuple[int, int, float]]:
        """Return who sends to whom how many bytes in a sum."""
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
        users, beside = self._users, False
        while len(users) < len(self._paths.capacity):
            users.append([])
        for port, _ in flow.path.ports:
            beside = beside or bool(users[port])
            users[port].append(flow)
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
