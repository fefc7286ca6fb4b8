"""A transport slowed down to a cluster's links: a message takes as long as the cluster needs."""

import threading
import time
from collections.abc import Callable, Sequence
from functools import partial

from pipekit.clusters import Cluster
from pipekit.clusters.traffic import Flow, Traffic
from pipekit.engine.transport import GATHER, Exchange, FlatBucket, PartKey, Parts, Transport
from pipekit.schedules import Message
from pipekit.trees import Tree, tree_bytes

_SumKey = tuple[bool, int, int]  # whether of tied weights, stage or tie, bucket


class Calendar:
    """When messages arrive, for all workers of this process.

    Messages that share a link slow one another down: who waits for one looks again whenever some
    flow ends, and when a new one makes that sooner.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._traffic, self._changed = Traffic(cluster), threading.Condition()
        self._flows: dict[Message, Flow] = {}
        self._sums: dict[tuple[tuple[int, ...], _SumKey], Flow] = {}

    def sent(self, message: Message, source: int, destination: int, size: float) -> None:
        self._flows[message] = self._set_out(partial(self._traffic.send, source, destination, size))

    def wait(self, message: Message) -> None:
        self._wait(self._flows.pop(message))

    def wait_for_sum(self, members: Sequence[int], number: _SumKey, size: float) -> None:
        """Return when all members have a sum; it sets out when the first of them calls."""
        key = tuple(members), number
        with self._changed:
            if key not in self._sums:
                self._sums[key] = self._set_out(partial(self._traffic.all_reduce, members, size))
        self._wait(self._sums[key])

    def _set_out(self, begin: Callable[[float], Flow]) -> Flow:
        with self._changed:
            before = self._traffic.soonest
            flow = begin(self._now())
            if self._traffic.soonest < before:
                self._changed.notify_all()
        return flow

    def _now(self) -> float:
        now = time.perf_counter()
        self._traffic.run_until(now)
        return now

    def _wait(self, flow: Flow) -> None:
        with self._changed:
            while now := self._now():
                if flow.done:
                    break
                self._changed.wait(self._traffic.soonest - now)
        while (left := flow.arrival - time.perf_counter()) > 0:
            time.sleep(left)


class SlowTransport:
    """A worker's transport, on which messages and whole sums take their time; norms are small."""

    def __init__(self, transport: Transport, worker: int, calendar: Calendar) -> None:
        self._transport, self._worker, self._calendar = transport, worker, calendar
        self.require_peers, self.finish = transport.require_peers, transport.finish
        self.stop_point, self.end = transport.stop_point, transport.end
        self.all_reduce = transport.all_reduce

    def receive(self, message: Message, source: int) -> Tree:
        content = self._transport.receive(message, source)
        if source != self._worker:
            self._calendar.wait(message)
        return content

    def send(self, message: Message, destination: int, content: Tree) -> None:
        if destination != self._worker:
            self._calendar.sent(message, self._worker, destination, tree_bytes(content))
        self._transport.send(message, destination, content)

    def exchange_among(self, members: Sequence[int], tied: bool = False) -> Exchange:
        exchange = self._transport.exchange_among(members, tied)

        def slow(key: PartKey, sends: Parts, receives: Parts, microbatch: int) -> list[FlatBucket]:
            found = exchange(key, sends, receives, microbatch)
            if sends and key.phase == GATHER:  # a whole sum takes its time, at its end
                own, *_ = sends.values()
                size = sum(part.numbers.nbytes for part in (*found, own))
                self._calendar.wait_for_sum(members, (tied, key.stage, key.number), size)
            return found

        return slow
