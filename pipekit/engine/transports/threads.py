"""All workers in this process, a thread each: starts at once, and errors surface in the cell."""

import threading
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import chain
from operator import is_
from queue import SimpleQueue
from typing import Any, TypeVar

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
from pipekit.engine.config import RunConfig
from pipekit.engine.execution.stage import StageSource, TrainedStage
from pipekit.engine.transport import Aborted, Transport
from pipekit.engine.transports.mailbox import InboxLinks, Key
from pipekit.engine.transports.run_threads import Tell, together
from pipekit.engine.transports.slow_links import Calendar, SlowLinks
from pipekit.engine.work import Report, WorkerAssignment, evaluate, train
from pipekit.schedules import Message
from pipekit.trees import Tree, tree_map

T = TypeVar("T")
LossCallback = Callable[[int, float], None]


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


class ThreadRunner:
    """Runs every worker in a thread of its own; stages that it has trained stay here."""

    def __init__(self) -> None:
        self._kept: dict[int, tuple[Sequence[StageSource], dict[int, TrainedStage]]] = {}

    def run(
        self,
        workers: Sequence[WorkerAssignment],
        config: RunConfig,
        batches: Iterable[Batch],
        on_loss: LossCallback | None,
    ) -> list[Report]:
        """Return the workers' reports.

        Args:
            workers: what each is to do.
            config: what is common to all.
            batches: the run's data.
            on_loss: called in this thread with (microbatch, weighted loss), or None.

        Raises:
            Exception: the first that any worker raised, with its traceback, once all have ended.
        """
        network = ThreadNetwork(config.busy, [worker.device for worker in workers])
        feed = Feed(batches, Needs.of(chain.from_iterable(worker.steps for worker in workers)))
        calendar = None if config.cluster is None else Calendar(config.cluster)
        kept, self._kept = self._kept, {}  # nothing stays if a worker fails

        def run(assignment: WorkerAssignment, tell: Tell) -> Report:
            def tell_loss(microbatch: int, loss: Tensor) -> None:
                tell((microbatch, loss.item()))

            with on_stream(new_stream(assignment.device)):
                links: Transport = network.links(assignment.index)
                if calendar is not None:
                    links = SlowLinks(links, assignment.index, calendar)
                if not config.training:
                    report = evaluate(assignment, config, links, feed)
                else:
                    stages = _kept(kept.get(assignment.index), assignment.stages)
                    stages = stages or assignment.build()
                    report = train(
                        assignment, stages, config, links, feed, tell_loss if on_loss else None
                    )
                    self._kept[assignment.index] = report.stages, stages
                synchronize(assignment.device)  # who reads the report does so on another stream
                return report

        def hear(loss: tuple[int, float]) -> None:
            assert on_loss is not None
            on_loss(*loss)

        reports = together([partial(run, each) for each in workers], network.abort, hear)
        if not config.training:
            self._kept = kept
        return reports

    def gather(self, state: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return the entries of all workers: here they are all of this process."""
        return state

    def agree(self, function: Callable[[], T]) -> T:
        """Return what ``function`` returns: there is nobody to agree with."""
        return function()

    def close(self) -> None:
        """Let go of the stages that are here."""
        self._kept.clear()


def _kept(
    kept: tuple[Sequence[StageSource], dict[int, TrainedStage]] | None,
    wanted: Sequence[StageSource],
) -> dict[int, TrainedStage] | None:
    """Return the stages that a worker has left here, if they are those that are wanted now."""
    if kept and len(kept[0]) == len(wanted) and all(map(is_, kept[0], wanted)):
        return kept[1]
    return None
