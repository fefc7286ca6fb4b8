"""All workers in this process, a thread each: starts at once, and errors surface in the cell."""

import threading
from collections.abc import Iterable, Sequence
from functools import partial
from itertools import chain
from queue import SimpleQueue
from typing import Any

import torch
from torch import Tensor

from pipekit.devices import (
    Copier,
    is_accelerator,
    keep_for_current_stream,
    new_stream,
    on_stream,
    synchronize,
    wait_event,
)
from pipekit.engine.batches import Batch, Feed, Needs
from pipekit.engine.config import Job
from pipekit.engine.execution.stage import StageSpec
from pipekit.engine.execution.worker import LossCallback, Report, work
from pipekit.engine.transports.mailbox import InboxLinks, Key
from pipekit.engine.transports.run_threads import Tell, together
from pipekit.engine.transports.slow_links import Calendar, SlowLinks
from pipekit.engine.transports.transport import Aborted, Links
from pipekit.schedules import Message, Step
from pipekit.trees import Tree, tree_map


class Queues:
    """Everybody's inboxes, as one thread sees them.

    Args:
        index: this worker.
        queues: everybody's.
    """

    def __init__(self, index: int, queues: Sequence["SimpleQueue[Any]"]) -> None:
        self._queues, self.get = queues, queues[index].get

    def put(self, worker: int, key: Key, message: Any) -> None:
        """See :class:`pipekit.engine.transports.mailbox.Inboxes`."""
        self._queues[worker].put((key, message))


class ThreadLinks(InboxLinks):
    """Hands tensors over by reference.

    Args:
        index: this worker.
        network: what it has in common with the others.
    """

    def __init__(self, index: int, network: "ThreadNetwork") -> None:
        inboxes, lanes = Queues(index, network.queues), Queues(index, network.lanes)
        super().__init__(index, network.workers, inboxes, lanes)
        self._aborted, self._devices = network.aborted, network.devices
        self._device = self._devices[index]
        self._copier = None
        if is_accelerator(self._device):
            self._copier = Copier(self._device, beside=network.copy_streams)

    def require_peers(self) -> None:
        """See :class:`Links`."""
        if self._aborted.is_set():
            raise Aborted

    def receive(self, message: Message, source: int) -> Tree:
        """See :class:`Links`."""
        content, ready = super().receive(message, source)
        if ready is None:
            return content
        wait_event(self._device, ready)
        return tree_map(keep_for_current_stream, content)

    def send(self, message: Message, destination: int, content: Tree) -> None:
        """See :class:`Links`."""
        copy: tuple[Tree, Any] = content, None
        if self._copier:
            copy = self._copier.copy(content, self._devices[destination])
        super().send(message, destination, copy)


class ThreadNetwork:
    """What the links of all threads have in common, for one run.

    Args:
        workers: those that have anything to do.
        devices: everybody's.
        copy_streams: whether tensors travel between GPUs beside the computing (torchgpipe, section
            3.2.3), or in its stream.
    """

    def __init__(
        self, workers: Sequence[int], devices: Sequence[torch.device], copy_streams: bool = True
    ) -> None:
        self.workers, self.devices, self.copy_streams = workers, devices, copy_streams
        self.queues: list[SimpleQueue[Any]] = [SimpleQueue() for _ in devices]
        self.lanes: list[SimpleQueue[Any]] = [SimpleQueue() for _ in devices]
        self.aborted = threading.Event()

    def links(self, index: int) -> ThreadLinks:
        """Return a worker's links; called in its thread."""
        return ThreadLinks(index, self)

    def abort(self) -> None:
        """Let every worker raise Aborted, also those who wait."""
        self.aborted.set()
        for queue in [*self.queues, *self.lanes]:
            queue.put((None, None))


def run_threads(
    lowered: Sequence[Sequence[Step]],
    specs: Sequence[Sequence[StageSpec]],
    job: Job,
    batches: Iterable[Batch],
    devices: Sequence[torch.device],
    on_loss: LossCallback | None,
) -> list[Report]:
    """Run every worker in a thread of its own, and return their reports.

    Args:
        lowered: each worker's steps.
        specs: each worker's stages.
        job: what is common to all.
        batches: the run's data.
        devices: each worker's device.
        on_loss: called in this thread with (microbatch, weighted loss), or None.

    Raises:
        Exception: the first that any worker raised, with its traceback, once all have ended.
    """
    network = ThreadNetwork(job.busy, devices)
    feed = Feed(batches, Needs.of(chain.from_iterable(lowered)))
    calendar = None if job.cluster is None else Calendar(job.cluster)

    def run(index: int, tell: Tell) -> Report:
        device = devices[index]

        def tell_loss(microbatch: int, loss: Tensor) -> None:
            tell((microbatch, loss.item()))

        with on_stream(new_stream(device)):
            links: Links = network.links(index)
            if calendar is not None:
                links = SlowLinks(links, index, calendar)
            watched = tell_loss if on_loss else None
            report = work(index, lowered[index], specs[index], job, links, feed, device, watched)
            synchronize(device)  # whoever reads the report reads it on another stream
            return report

    def hear(loss: tuple[int, float]) -> None:
        assert on_loss is not None
        on_loss(*loss)

    return together([partial(run, index) for index in range(len(lowered))], network.abort, hear)
