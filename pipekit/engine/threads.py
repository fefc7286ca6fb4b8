"""All workers in this process, a thread each: starts at once, and errors surface in the cell."""

import sys
import threading
from collections.abc import Iterable, Sequence
from itertools import chain
from queue import SimpleQueue
from typing import Any

import torch
from torch import Tensor

from pipekit.engine.clock import own_stream
from pipekit.engine.cores import share_cores
from pipekit.engine.inbox_links import InboxLinks, Key
from pipekit.engine.links import Aborted, Links
from pipekit.engine.microbatches import Batch, Feed, Needs
from pipekit.engine.slow_links import Calendar, SlowLinks
from pipekit.engine.stage import StageSpec
from pipekit.engine.worker import Job, LossCallback, Report, work
from pipekit.schedules import Message, Step
from pipekit.trees import Tree, tree_map

# Operators hold the interpreter for microseconds; with Python's 5 ms, small stages are 15 % slower.
SWITCH_INTERVAL_S = 1e-4


class Queues:
    """Everybody's inboxes, as one thread sees them.

    Args:
        index: this worker.
        queues: everybody's.
    """

    def __init__(self, index: int, queues: Sequence["SimpleQueue[Any]"]) -> None:
        self._queues, self.get = queues, queues[index].get

    def put(self, worker: int, key: Key, message: Any) -> None:
        """See :class:`pipekit.engine.inbox_links.Inboxes`."""
        self._queues[worker].put((key, message))


class ThreadLinks(InboxLinks):
    """Hands tensors over by reference.

    Args:
        index: this worker.
        workers: those that have anything to do.
        queues: everybody's inboxes.
        lanes: everybody's other inboxes, see :class:`pipekit.engine.inbox_links.InboxLinks`.
        devices: everybody's.
        abort: set as soon as any worker has failed.
    """

    def __init__(
        self,
        index: int,
        workers: Sequence[int],
        queues: Sequence["SimpleQueue[Any]"],
        lanes: Sequence["SimpleQueue[Any]"],
        devices: Sequence[torch.device],
        abort: threading.Event,
    ) -> None:
        super().__init__(index, workers, Queues(index, queues), Queues(index, lanes))
        self._abort, self._devices, self._device = abort, devices, devices[index]
        cuda = self._device.type == "cuda"
        self._copies = torch.cuda.Stream(self._device) if cuda else None

    def require_peers(self) -> None:
        """See :class:`pipekit.engine.links.Links`."""
        if self._abort.is_set():
            raise Aborted

    def receive(self, message: Message, source: int) -> Tree:
        """See :class:`pipekit.engine.links.Links`."""
        content, ready = super().receive(message, source)
        if ready is None:
            return content
        torch.cuda.current_stream().wait_event(ready)
        return tree_map(_use_on_current_stream, content)

    def send(self, message: Message, destination: int, content: Tree) -> None:
        """See :class:`pipekit.engine.links.Links`."""
        super().send(message, destination, self._on_its_way(destination, content))

    def _on_its_way(self, destination: int, content: Tree) -> tuple[Tree, Any]:
        """Start the copy to the receiver's device; return it and the event that ends it."""
        copies = self._copies
        if copies is None:
            return content, None
        target = self._devices[destination]
        copies.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(copies):
            moved = tree_map(lambda t: t.to(target, non_blocking=True), content)
            tree_map(lambda t: t.record_stream(copies), content)
            ready = torch.cuda.Event()
            ready.record(copies)
        return moved, ready


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
    queues: list[SimpleQueue[Any]] = [SimpleQueue() for _ in lowered]
    lanes: list[SimpleQueue[Any]] = [SimpleQueue() for _ in lowered]
    outcomes: SimpleQueue[tuple[str, Any]] = SimpleQueue()
    feed, abort = Feed(batches, Needs.of(chain.from_iterable(lowered))), threading.Event()
    calendar = None if job.cluster is None else Calendar(job.cluster)
    reports: dict[int, Report] = {}

    def run(index: int) -> None:
        report_loss = None
        if on_loss is not None:

            def report_loss(microbatch: int, loss: Tensor) -> None:
                outcomes.put(("loss", (microbatch, loss.item())))

        try:
            device = devices[index]
            share_cores(len(lowered))
            with own_stream(device):
                links: Links = ThreadLinks(index, job.busy, queues, lanes, devices, abort)
                if calendar is not None:
                    links = SlowLinks(links, index, calendar)
                report = work(
                    index, lowered[index], specs[index], job, links, feed, device, report_loss
                )
            outcomes.put(("done", (index, report)))
        except BaseException as error:
            outcomes.put(("failed", error))

    threads = [
        threading.Thread(target=run, args=(index,), name=f"pipekit worker {index}", daemon=True)
        for index in range(len(lowered))
    ]
    cores, interval = torch.get_num_threads(), sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    try:
        for thread in threads:
            thread.start()
        while len(reports) < len(threads):
            kind, value = outcomes.get()
            if kind == "failed":
                raise value
            if kind == "loss":
                assert on_loss is not None
                on_loss(*value)
            else:
                reports[value[0]] = value[1]
    finally:
        if len(reports) < len(threads):
            abort.set()
            for queue in [*queues, *lanes]:  # wake those who wait
                queue.put((None, None))
        for thread in threads:
            if thread.ident is not None:
                thread.join()
        torch.set_num_threads(cores)
        sys.setswitchinterval(interval)
    return [reports[index] for index in range(len(threads))]


def _use_on_current_stream(tensor: Tensor) -> Tensor:
    tensor.record_stream(torch.cuda.current_stream(tensor.device))
    return tensor
