"""The parent's side of worker processes: they are started once, and get one task a run."""

import os
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, suppress
from functools import cached_property, partial
from multiprocessing.connection import wait
from multiprocessing.forkserver import MAXFDS_TO_SEND
from pathlib import Path
from typing import Any, cast

from pipekit.devices import CPU
from pipekit.engine.assignment import WorkerReport
from pipekit.engine.batches import Batch
from pipekit.engine.calls import deferred_interrupts
from pipekit.engine.comm_thread import CommThread
from pipekit.engine.feed import End, Needs
from pipekit.engine.observers.reporter import Listener
from pipekit.engine.transport import Aborted
from pipekit.engine.transports.processes.feeder import send_batches
from pipekit.engine.transports.processes.forkserver import WorkerDied, WorkerHandle
from pipekit.engine.transports.processes.pickling import unpacked
from pipekit.engine.transports.processes.shared_mailbox import (
    Endpoint,
    SharedBuffer,
    SharedMailboxes,
    close_others,
    endpoints_for,
)
from pipekit.engine.transports.processes.worker_process import READ_STAGES, Content
from pipekit.engine.transports.watchdog import BYTES, LOOK_S, NOTICE_S, Watchdog, WorkerStates
from pipekit.engine.transports.worker_threads import as_here
from pipekit.host.unpickling import loads

OWN_FILES = 12  # of a worker process, about: its own pipes, and what Python starts it with
GRACE_S = 3.0  # for the first failure to arrive after its consequences, and for a thread to end


class WorkerPool:
    """Worker processes that wait for tasks: :meth:`start` starts them, :meth:`close` ends them.

    They also end with this process, whatever ends it.  A ValueError says that there are more
    ``workers`` than can reach one another; ``with_sums``, a stage may be on several of them.
    """

    def __init__(self, workers: int, with_sums: bool) -> None:
        self._workers, self.with_sums, self._parent = workers, with_sums, os.getpid()
        mailboxes = workers * (1 + with_sums) + 1
        needed = 2 * mailboxes + OWN_FILES  # a pipe and a buffer of each
        if needed > MAXFDS_TO_SEND:
            raise ValueError(
                f"each of {workers} worker processes would need {needed} open files to reach the "
                f"others, and {MAXFDS_TO_SEND} are the most: use transport='threads', or torchrun"
            )
        self._opened = ExitStack()
        # Of the workers, of the feeder in this process, and for sums of the workers again.
        self._endpoints: list[Endpoint] = []
        self._mailboxes = SharedMailboxes(workers, self._endpoints)
        self._handles: list[WorkerHandle] = []
        self._runs = 0
        self._feeding: Future[None] | None = None
        self.ready = False  # whether nothing has failed, and nothing runs
        try:
            with deferred_interrupts():  # whatever is open is known when one comes
                for _ in range(mailboxes):
                    self._endpoints.append(Endpoint.new())
                    self._opened.callback(self._endpoints[-1].close)
                shared = SharedBuffer()
                self._opened.callback(shared.close)
                memory = shared.map(shared.allocate(BYTES * workers))
                self.states = WorkerStates(workers, memory)  # what they are at
                for index in range(workers):
                    own = endpoints_for((index, workers + 1 + index), self._endpoints)
                    self._handles.append(WorkerHandle(index, workers, own, shared))
        except BaseException:
            self.close()
            raise

    def start(self) -> None:
        """Start the processes; after an error the pool is to be closed."""
        for handle in self._handles:
            handle.start()
        close_others(self._workers, self._endpoints)
        self.ready = True

    def run(
        self,
        tasks: Sequence[bytes],
        batches: Iterable[Batch | End],
        needs: Mapping[int, Needs],
        on_news: Listener | None,
        watchdog: Watchdog,
    ) -> list[WorkerReport]:
        """Have every worker do its task, pickled; return their reports, without their stages.

        ``needs`` has the workers that are to hear of batches.  Raised is the first worker's error,
        with its traceback as its cause, or WorkerDied; then the pool is to be closed.
        """
        self.ready = False
        self._runs += 1

        end = partial(self._mailboxes.tell_end, self._runs)

        def send() -> None:
            for handle, task in zip(self._handles, tasks, strict=True):
                with suppress(OSError):  # it has ended, or failed: its report or its end says why
                    handle.tasks.send_bytes(task)  # which waits for a worker that is stopped
            with suppress(Aborted):  # a worker is gone: whoever waits will know why
                send_batches(batches, needs, self._mailboxes, end, self._runs)

        with deferred_interrupts():
            thread = CommThread("pipekit feeder", CPU, self._workers)
            self._feeding = thread.submit(partial(as_here(), send))
            thread.close()
        reports = self._wait(self._feeding, on_news, watchdog)
        with suppress(TimeoutError):  # the user's iterator may keep it
            self._feeding.exception(GRACE_S)
            self._mailboxes.clear()  # of what workers told the feeder after its last batch
            self.ready = True
        return reports

    def stages(self, worker: int) -> list[Content]:
        """Return what the last training has made of a worker's stages; nothing may run now."""
        if os.getpid() != self._parent:
            raise RuntimeError("only the process that has trained a pipeline can read its weights")
        handle = self._handles[worker]
        with deferred_interrupts():  # one in between would leave the answer to whoever asks next
            try:
                handle.tasks.send_bytes(READ_STAGES)
                while not handle.reports.poll(NOTICE_S):
                    said = " and ".join(self.stopped()) or f"worker {worker} has not answered"
                    print(f"pipekit: its weights are waited for: {said}", file=sys.stderr)
                kind, value = loads(handle.reports.recv_bytes())
            except (EOFError, OSError) as error:
                self.ready = False
                how = "" if handle.tasks.closed else f" {handle.why()}"  # unknown once let go
                raise WorkerDied(
                    f"worker {worker}'s process ended between two calls{how}, and its "
                    f"stages with it: build the pipeline again and resume() from a checkpoint, or "
                    f"give it a state that was kept, by load_state_dict()"
                ) from error
        if kind == "failed":
            raise value
        return cast(list[Content], unpacked(value, self._endpoints[worker].buffer))

    def stopped(self) -> list[str]:
        """Return a sentence for each process that somebody has stopped."""
        says = "worker {0}'s process {1} is stopped: kill -CONT {1} lets it go on"
        handles = enumerate(self._handles)
        return [says.format(i, each.process.pid) for i, each in handles if each.is_stopped]

    @cached_property
    def store(self) -> str:
        folder = tempfile.TemporaryDirectory(prefix="pipekit-")
        self._opened.callback(folder.cleanup)
        return str(Path(folder.name, "store"))

    def close(self) -> None:
        """End every process and the feeder, however they stand."""
        if os.getpid() != self._parent:  # a fork of this process: they are not its own
            return
        for handle in self._handles:
            handle.let_go()
        for handle in self._handles:
            handle.end()
        if self._feeding is not None:
            with suppress(TimeoutError):
                self._feeding.exception(GRACE_S)
        # A notebook keeps the last traceback, and with it this object: it must not keep the memory.
        self._mailboxes.close()
        self._opened.close()

    def _wait(
        self, feeding: "Future[None]", on_news: Listener | None, watchdog: Watchdog
    ) -> list[WorkerReport]:
        done: dict[int, WorkerReport] = {}
        aborted, deadline = "", float("inf")
        places: dict[Any, int] = {}
        for index, handle in enumerate(self._handles):
            places |= dict.fromkeys((handle.reports, handle.process.sentinel), index)
        while len(done) < self._workers:
            ready = wait(list(places), LOOK_S)
            watchdog.look()
            if not ready and time.monotonic() > deadline:
                raise WorkerDied(f"the workers lost touch with one another: {aborted}")
            if feeding.done() and (error := feeding.exception()):  # of the data
                raise error
            for index in {places[each] for each in ready}:
                handle, news = self._handles[index], None
                with suppress(EOFError, OSError):
                    if handle.reports.poll():
                        news = loads(handle.reports.recv_bytes())
                if news is None:
                    raise WorkerDied(
                        f"worker {index}'s process ended in mid-run {handle.why()}; it was last "
                        f"seen: {watchdog.line(index)}"
                    )
                kind, value = news
                if kind == "failed":
                    raise value
                if kind == "aborted":
                    aborted, deadline = value, min(deadline, time.monotonic() + GRACE_S)
                elif kind == "news" and on_news is not None:
                    on_news(value)
                elif kind == "done":
                    report = done[index] = unpacked(value, self._endpoints[index].buffer)
                    if report.error is not None:
                        watchdog.ends_by(report.error)
        return [done[index] for index in range(self._workers)]
