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
from pipekit.engine.transports.mailbox import Key, KeyedMailbox, Mailbox
from pipekit.engine.transports.mailbox_transport import MailboxTransport
from pipekit.engine.transports.run_threads import Notify, run_threads
from pipekit.engine.transports.slow_transport import Calendar, SlowTransport
from pipekit.engine.work import Report, WorkerAssignment, evaluate, train
from pipekit.trees import tree_map

T = TypeVar("T")
LossCallback = Callable[[int, float], None]


class ThreadMailboxes:
    """The mailboxes of all threads, as one of them sees them: a queue each.

    Args:
        worker: whose own is read.
        queues: of all workers.
    """

    def __init__(self, worker: int, queues: Sequence["SimpleQueue[Any]"]) -> None:
        self._queues, self.get = queues, queues[worker].get

    def put(self, worker: int, key: Key, content: Any) -> None:
        """Put a message into a worker's mailbox; its tensors are handed over by reference."""
        self._queues[worker].put((key, content))


class CopyingMailbox:
    """The mailbox of a worker on an accelerator: contents are copied to the receivers' devices.

    Args:
        mailbox: hands contents over by reference.
        worker: whose mailbox it is.
        devices: of all workers.
        copy_streams: whether copies run beside the computing (torchgpipe, section 3.2.3).
    """

    def __init__(
        self, mailbox: Mailbox, worker: int, devices: Sequence[torch.device], copy_streams: bool
    ) -> None:
        self._mailbox, self._device, self._devices = mailbox, devices[worker], devices
        self._copier = Copier(self._device, beside=copy_streams)

    def put(self, worker: int, key: Key, content: Any) -> None:
        """Start a copy to the receiver's device; hand it over with the event that ends it."""
        self._mailbox.put(worker, key, self._copier.copy(content, self._devices[worker]))

    def wait(self, key: Key) -> Any:
        """Return the content of a message; the device waits for its copy, and this thread not."""
        content, ready = self._mailbox.wait(key)
        wait_event(self._device, ready)
        return tree_map(keep_for_current_stream, content)


class ThreadNetwork:
    """What the transports of all threads have in common, for one run.

    Args:
        workers: those that have anything to do.
        devices: of all workers.
        copy_streams: whether tensors travel between accelerators beside the computing (torchgpipe,
            section 3.2.3), or in its stream.
    """

    def __init__(
        self, workers: Sequence[int], devices: Sequence[torch.device], copy_streams: bool = True
    ) -> None:
        self._workers, self._devices, self._copy_streams = workers, devices, copy_streams
        self._queues: list[SimpleQueue[Any]] = [SimpleQueue() for _ in devices]
        self._sums_queues: list[SimpleQueue[Any]] = [SimpleQueue() for _ in devices]
        self.aborted = threading.Event()

    def transport(self, worker: int) -> MailboxTransport:
        """Return the transport of a worker; called in its thread."""
        return MailboxTransport(
            worker,
            self._workers,
            self._mailbox(worker, self._queues),
            self._mailbox(worker, self._sums_queues),
            self.require_peers,
        )

    def require_peers(self) -> None:
        """Raise Aborted if the run was aborted."""
        if self.aborted.is_set():
            raise Aborted

    def abort(self) -> None:
        """Let every worker raise Aborted, also those who wait."""
        self.aborted.set()
        for queue in [*self._queues, *self._sums_queues]:
            queue.put((None, None))

    def _mailbox(self, worker: int, queues: Sequence["SimpleQueue[Any]"]) -> Mailbox:
        mailbox = KeyedMailbox(ThreadMailboxes(worker, queues), self.require_peers)
        if not is_accelerator(self._devices[worker]):
            return mailbox
        return CopyingMailbox(mailbox, worker, self._devices, self._copy_streams)


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

        def run(assignment: WorkerAssignment, notify: Notify) -> Report:
            def notify_loss(microbatch: int, loss: Tensor) -> None:
                notify((microbatch, loss.item()))

            with on_stream(new_stream(assignment.device)):
                transport: Transport = network.transport(assignment.index)
                if calendar is not None:
                    transport = SlowTransport(transport, assignment.index, calendar)
                if not config.training:
                    report = evaluate(assignment, config, transport, feed)
                else:
                    stages = _kept(kept.get(assignment.index), assignment.stages)
                    stages = stages or assignment.build()
                    told = notify_loss if on_loss else None
                    report = train(assignment, stages, config, transport, feed, told)
                    self._kept[assignment.index] = report.stages, stages
                synchronize(assignment.device)  # who reads the report does so on another stream
                return report

        def on_event(loss: tuple[int, float]) -> None:
            assert on_loss is not None
            on_loss(*loss)

        reports = run_threads([partial(run, each) for each in workers], network.abort, on_event)
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
