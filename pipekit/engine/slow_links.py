"""Links slowed down to a cluster's: a message is there when the cluster would have brought it."""

import threading
import time

from torch import Tensor

from pipekit.clusters import Cluster
from pipekit.clusters.traffic import Traffic
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

    def sent(self, key: Key, source: int, destination: int, size: float) -> None:
        """Note that ``size`` bytes set out now."""
        with self._lock:
            now = time.perf_counter()
            self._arrivals[key] = self._traffic.send(source, destination, size, now).arrival

    def wait(self, key: Key) -> None:
        """Return when the message has arrived."""
        arrival = self._arrivals.pop(key)
        while (left := arrival - time.perf_counter()) > 0:
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
