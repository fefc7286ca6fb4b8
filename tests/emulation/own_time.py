"""Emulations in a time of their own, which no machine can slow down.

Every thread has a clock that moves by what the thread waits for: by a pass's seconds, and to the
moment at which a message, or the result of its communication thread, is there.  The engine is the
real one, and nobody sleeps.  Messages wait for those before them between the same two workers, and
are slowed down by no others.
"""

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

from pipekit.clusters import Cluster
from pipekit.clusters.traffic import Flow, Traffic
from pipekit.devices import streams as devices_clock
from pipekit.emulation import stage
from pipekit.engine.comm_thread import CommThread
from pipekit.engine.transports import threads
from pipekit.engine.transports.mailbox import Key, KeyedMailbox
from pipekit.schedules import Message


class OwnTime(threading.local):
    """The clock of each thread."""

    now = 0.0

    def reach(self, moment: float) -> None:
        self.now = max(self.now, moment)

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class Stamped(NamedTuple):
    """What a mailbox brings, and when it was put there."""

    content: Any
    sent_s: float


@contextmanager
def own_time() -> Iterator[None]:
    """Let emulations within the block run in a time of their own."""
    clock = OwnTime()
    submit = CommThread.submit

    class Mailbox(KeyedMailbox):
        """Stamps what it sends."""

        def __init__(self, put: Callable[[int, Key, Any], None], *others: Any) -> None:
            def put_stamped(worker: int, key: Key, content: Any) -> None:
                put(worker, key, Stamped(content, clock.now))

            super().__init__(put_stamped, *others)

        def wait(self, key: Key, microbatch: int = -1) -> Any:
            content, sent_s = super().wait(key, microbatch)
            clock.reach(sent_s)
            return content

    def submitted(self: CommThread, function: Callable[[], Any]) -> "Future[Any]":
        begun, ended = clock.now, [0.0]

        def timed() -> Any:
            clock.reach(begun)
            result = function()
            ended[0] = clock.now
            return result

        future = submit(self, timed)
        get = future.result

        def result(timeout: float | None = None) -> Any:
            found = get(timeout)
            clock.reach(ended[0])
            return found

        future.result = result  # type: ignore[method-assign]
        return future

    class Calendar:
        """When messages arrive; see :class:`pipekit.engine.transports.slow_transport.Calendar`."""

        def __init__(self, cluster: Cluster) -> None:
            self._cluster = cluster
            self._free: dict[tuple[int, int], float] = defaultdict(float)
            self._arrivals: dict[Message, float] = {}

        def sent(self, message: Message, source: int, destination: int, size: float) -> None:
            traffic, pair = Traffic(self._cluster), (source, destination)
            flow = traffic.send(*pair, size, max(clock.now, self._free[pair]))
            self._arrivals[message] = self._arrival(traffic, flow)
            self._free[pair] = flow.end

        def wait(self, message: Message) -> None:
            clock.reach(self._arrivals.pop(message))

        def wait_for_sum(self, members: Sequence[int], number: object, size: float) -> None:
            """All members' clocks agree by then: each has got the others' parts."""
            traffic = Traffic(self._cluster)
            flow = traffic.all_reduce(members, size, clock.now)
            clock.reach(self._arrival(traffic, flow))

        def _arrival(self, traffic: Traffic, flow: Flow) -> float:
            while not flow.done:
                traffic.run_until(traffic.soonest)
            return flow.arrival

    times = SimpleNamespace(perf_counter=lambda: clock.now, sleep=clock.sleep, time_ns=time.time_ns)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stage, "time", times)
        patch.setattr(devices_clock, "time", times)
        patch.setattr(threads, "KeyedMailbox", Mailbox)
        patch.setattr(CommThread, "submit", submitted)
        patch.setattr(threads, "Calendar", Calendar)
        yield
