"""All workers in this process, a thread each: starts at once, and errors surface in the cell."""

import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from itertools import chain
from queue import SimpleQueue
from typing import Any

import torch

from pipekit.devices import (
    Clock,
    Copier,
    ThreadStreams,
    is_accelerator,
    keep_for_current_stream,
    new_stream,
    on_stream,
    wait_event,
)
from pipekit.engine import work
from pipekit.engine.assignment import Runner, WorkerAssignment, WorkerReport
from pipekit.engine.batches import Batch
from pipekit.engine.config import RunConfig
from pipekit.engine.execution.stage import Stage
from pipekit.engine.feed import End, Feed, Needs, StopPoint
from pipekit.engine.observers.reporter import Listener
from pipekit.engine.transport import Aborted, Transport
from pipekit.engine.transports.mailbox import Key, KeyedMailbox, MailboxTransport, end_key
from pipekit.engine.transports.slow_transport import Calendar, SlowTransport
from pipekit.engine.transports.watchdog import Watchdog, WorkerStates
from pipekit.engine.transports.worker_threads import Notify, WorkerThreads
from pipekit.trees import tree_map


class CopyingMailbox(KeyedMailbox):
    """The mailbox of a worker on an accelerator: contents are copied to the receivers' devices."""

    def __init__(self, copier: Copier, devices: Sequence[torch.device], *mailbox: Any) -> None:
        super().__init__(*mailbox)
        self._device, put = copier.device, self.put

        def put_copy(worker: int, key: Key, content: Any) -> None:
            """Start a copy to the receiver's device; hand over the event that ends it, too."""
            put(worker, key, copier.copy(content, devices[worker]))

        self.put = put_copy

    def wait(self, key: Key, microbatch: int = -1) -> Any:
        """Return the content of a message; the device waits for its copy, and this thread not."""
        content, ready = super().wait(key, microbatch)
        wait_event(self._device, ready)
        return tree_map(keep_for_current_stream, content)


class ThreadWorker:
    """The clock and the streams of a worker's thread, run after run; no streams on a CPU.

    The allocator keeps freed memory for the stream that it came from, so that they stay the same.
    With ``copy_streams`` tensors travel between accelerators beside the computing (torchgpipe,
    section 3.2.3), else in its stream.  ``copiers`` are for messages, and for sums, which need not
    wait for them.
    """

    def __init__(self, device: torch.device, copy_streams: bool = True) -> None:
        self.device, self.clock, self.stream = device, Clock(device), new_stream(device)
        self.copiers: list[Copier] = []
        if is_accelerator(device):
            self.copiers = [Copier(device, copy_streams), Copier(device, copy_streams)]

    @contextmanager
    def entered(self, before: Iterable[torch.Event]) -> Iterator[None]:
        """Compute in the worker's stream, behind some events."""
        with on_stream(self.stream):
            for event in before:
                wait_event(self.device, event)
            yield


class ThreadNetwork:
    """What the transports of all threads have in common, for one run."""

    def __init__(self, busy: Sequence[int], workers: Sequence[ThreadWorker]) -> None:
        self._busy, self._workers = busy, workers
        self._queues = [[SimpleQueue[Any]() for _ in workers] for _ in ("messages", "sums")]
        self._aborted, self._stop_point = False, StopPoint()

    def transport(self, worker: int) -> MailboxTransport:
        """Return the transport of a worker; called in its thread."""
        mailboxes = self._mailbox(worker, 0), self._mailbox(worker, 1)
        return MailboxTransport(worker, self._busy, *mailboxes, self.end)

    def _mailbox(self, worker: int, kind: int) -> KeyedMailbox:
        """Return a worker's mailbox for messages (0), or for sums (1)."""
        queues, copiers = self._queues[kind], self._workers[worker].copiers

        def put(receiver: int, key: Key, content: Any) -> None:
            queues[receiver].put((key, content))

        given = put, queues[worker].get, self.require_peers, self._stop_point
        if not copiers:
            return KeyedMailbox(*given)
        return CopyingMailbox(copiers[kind], [each.device for each in self._workers], *given)

    def require_peers(self) -> None:
        if self._aborted:
            raise Aborted

    def end(self, microbatch: int) -> None:
        """Let the run end before a microbatch, and wake the threads that wait."""
        self._stop_point.at(microbatch)
        self._wake(end_key(microbatch))

    def abort(self) -> None:
        """Let every worker raise Aborted, also those who wait."""
        self._aborted = True
        self._wake(None)

    def _wake(self, key: Key | None) -> None:
        for queue in chain(*self._queues):
            queue.put((key, ()))


class ThreadRunner(Runner):
    """Runs every worker in a thread of its own; the threads stay."""

    can_end = True

    def __init__(self) -> None:
        self._threads = WorkerThreads()
        self._workers: list[ThreadWorker] = []

    def run(
        self,
        workers: Sequence[WorkerAssignment],
        config: RunConfig,
        batches: Iterable[Batch | End],
        on_news: Listener | None,
    ) -> list[WorkerReport]:
        """Return the workers' reports; all have ended if it raises the first one's error."""
        self._workers = self._workers or [ThreadWorker(worker.device) for worker in workers]
        threads = self._workers
        network = ThreadNetwork(config.table.busy, threads)
        # What this thread has issued comes first: copies of stages, or what batches are made of.
        on_accelerators = is_accelerator(workers[0].device)
        caller = ThreadStreams([each.device for each in workers]) if on_accelerators else None
        before = caller.record_events() if caller else ()
        here = range(config.begin.microbatches, sys.maxsize)  # nothing of the batches before
        feed = Feed(batches, config.loss, Needs(here, here), caller, network.end)
        calendar = Calendar(config.execution.cluster) if config.execution.cluster else None
        states = WorkerStates(len(workers))
        steps = {worker.index: worker.steps for worker in workers}
        watchdog = Watchdog(states, steps, config.table.stage_workers, config.execution.timeout)

        def build(place: int, _: Notify) -> WorkerAssignment:
            with threads[place].entered(before):
                return work.built(workers[place])

        def run(place: int, notify: Notify) -> WorkerReport:
            assignment = workers[place]
            with threads[place].entered(before):
                transport: Transport = network.transport(assignment.index)
                if calendar:
                    transport = SlowTransport(transport, assignment.index, calendar)
                told = notify if on_news else None
                report = work.run(assignment, config, transport, feed, told, [states])
                if report.error is not None:
                    watchdog.ends_by(report.error)
                return report

        about = len(workers), network.abort, on_news, watchdog.look
        stages = chain.from_iterable(worker.stages.values() for worker in workers)
        if not all(isinstance(stage, Stage) for stage in stages):
            workers = self._threads.run(build, *about)  # before any begins: one may fail
        return self._threads.run(run, *about)

    def close(self) -> None:
        self._threads.close()


def over_threads(devices: Sequence[torch.device]) -> Runner:
    """Return what runs each worker in a thread of this process."""
    import_module("torch._dynamo")  # else the first run's optimizers do, for 1.5 s of its time
    return ThreadRunner()
