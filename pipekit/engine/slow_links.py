"""Links slowed down to a cluster's: a message is there when the cluster would have brought it."""

import threading
import time
from collections.abc import Sequence

from torch import Tensor

from pipekit.clusters import Cluster
from pipekit.clusters.traffic import Traffic
from pipekit.engine.buckets import Flat
from pipekit.engine.exchange import Exchange, Round
from pipekit.engine.links import Links
from pipekit.schedules import Op, Step
from pipekit.trees import Tree, leaves

Key = tuple[Op, int, int]


class Calendar:
    """When messages arrive, for all workers of this process.

    Args:
        cluster: whose links they use.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._traffic, self._lock = Traffic(cluster), threading.Lock()
        self._arrivals: dict[Key, float] = {}
        self._sums: dict[tuple[int, int], float] = {}

    def sent(self, key: Key, source: int, destination: int, size: float) -> None:
        """Note that ``size`` bytes set out now."""
        with self._lock:
            now = time.perf_counter()
            self._arrivals[key] = self._traffic.send(source, destination, size, now).arrival

    def wait(self, key: Key) -> None:
        """Return when the message has arrived."""
        _sleep_until(self._arrivals.pop(key))

    def wait_for_sum(self, members: Sequence[int], round: Round, size: float) -> None:
        """Return when all workers of a stage have a sum of ``size`` bytes; all of them call this.

        It sets out when the first of them calls, which is when all have given their part.
        """
        key = round.stage, round.number
        with self._lock:
            if key not in self._sums:
                now = time.perf_counter()
                self._sums[key] = self._traffic.all_reduce(members, size, now).arrival
        _sleep_until(self._sums[key])


def _sleep_until(moment: float) -> None:
    while (left := moment - time.perf_counter()) > 0:
        time.sleep(left)


class SlowLinks:
    """A worker's links, on which messages take their time.

    Args:
        links: those that hand the messages over.
        worker: whose they are.
        calendar: everybody's.
    """

    def __init__(self, links: Links, worker: int, calendar: Calendar) -> None:
        self._links, self._worker, self._calendar = links, worker, calendar
        self.require_peers, self.finish = links.require_peers, links.finish

    def receive(self, step: Step) -> Tree:
        """See :class:`pipekit.engine.links.Links`."""
        message = self._links.receive(step)
        if step.source != self._worker:
            op, stage, microbatch, _ = step.task
            self._calendar.wait((op, stage, microbatch))
        return message

    def send(self, step: Step, message: Tree) -> None:
        """See :class:`pipekit.engine.links.Links`."""
        op, stage, microbatch, _ = step.task
        if step.destination is not None and step.destination != self._worker:
            size = sum(tensor.nbytes for tensor in leaves(message))
            key = (op, stage + 1 if op is Op.FORWARD else stage - 1, microbatch)
            self._calendar.sent(key, self._worker, step.destination, size)
        self._links.send(step, message)

    def all_reduce(self, values: Tensor, update: int) -> Tensor:
        """See :class:`pipekit.engine.links.Links`; a norm's few bytes are not slowed."""
        return self._links.all_reduce(values, update)

    def exchange(self, members: Sequence[int]) -> Exchange:
        """See :class:`pipekit.engine.links.Links`."""
        return _SlowExchange(self._links.exchange(members), members, self._calendar)


class _SlowExchange:
    """Sums that take their time; see :class:`pipekit.engine.exchange.Exchange`."""

    def __init__(self, exchange: Exchange, members: Sequence[int], calendar: Calendar) -> None:
        self._exchange, self._members, self._calendar = exchange, members, calendar
        self.sent = exchange.sent

    def sum(self, round: Round, content: Flat) -> Flat:
        total = self._exchange.sum(round, content)
        self._calendar.wait_for_sum(self._members, round, content.numbers.nbytes)
        return total
