"""One process a worker, started from here: from a script or a notebook kernel, on one machine.

A fork server that has imported torch starts workers in a tenth of a second, where a fresh
interpreter takes seconds and a plain fork may deadlock after a multi-threaded operator.
"""

import multiprocessing
import pickle
import sys
import tempfile
import threading
import time
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, TypeVar

import cloudpickle
import torch
from torch import Tensor

from pipekit.devices import is_accelerator
from pipekit.engine.batches import Batch, Needs
from pipekit.engine.config import RunConfig
from pipekit.engine.transport import Aborted
from pipekit.engine.transports.feeder import send_batches
from pipekit.engine.transports.shared_mailbox import Port, SharedInboxes, let_go, ports_for
from pipekit.engine.transports.worker_process import Assignment, main
from pipekit.engine.work import Report, WorkerAssignment
from pipekit.operator_threads import share_cores

# torch imports the second one, for 1.5 s, when it makes its first optimizer.
PRELOAD = ["pipekit.engine.transports.processes", "torch._dynamo"]
T = TypeVar("T")
LossCallback = Callable[[int, float], None]
GRACE_S = 3.0  # how long the first failure may take to arrive after its consequences


class WorkerDied(RuntimeError):
    """A worker process ended without a word, killed from outside or by its own native code."""


class RemoteTraceback(Exception):
    """The traceback of an exception in a worker process; the cause of the one raised here."""

    def __str__(self) -> str:
        return f"\n\n{self.args[0]}"


class ProcessRunner:
    """Runs every worker in a process of its own, started from here."""

    def run(
        self,
        workers: Sequence[WorkerAssignment],
        config: RunConfig,
        batches: Iterable[Batch],
        on_loss: LossCallback | None,
    ) -> list[Report]:
        """Return the workers' reports, with their stages as they stand after the run.

        Args:
            workers: what each is to do.
            config: what is common to all.
            batches: the run's data.
            on_loss: called in this process with (microbatch, weighted loss), or None.

        Raises:
            Exception: the first that any worker raised, with that worker's traceback as its cause.
            WorkerDied: a worker's process was killed.
        """
        cores = torch.get_num_threads()
        memory = through_memory([worker.device for worker in workers])
        with ExitStack() as stack:
            store = None
            if not memory:
                folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="pipekit-"))
                store = str(Path(folder, "store"))
            replicated = any(len(replicas) > 1 for replicas in config.stage_workers)
            crew = _Crew(len(workers), replicated=replicated)
            needs = {worker.index: Needs.of(worker.steps) for worker in workers}
            feeder = threading.Thread(
                target=crew.feed,
                # Links between GPUs want to know every batch's shapes.
                args=(batches, {w: n for w, n in needs.items() if any(n) or not memory}),
                name="pipekit feeder",
                daemon=True,
            )
            try:
                for worker in workers:
                    own = replace(worker, incoming={}) if memory else worker
                    assignment = Assignment(own, config, store, on_loss is not None)
                    crew.start(worker.index, cloudpickle.dumps(assignment))
                feeder.start()
                return crew.wait(on_loss)
            finally:
                crew.end(feeder)
                torch.set_num_threads(cores)

    def gather(self, state: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return the entries of all workers: their reports have brought them here."""
        return state

    def agree(self, function: Callable[[], T]) -> T:
        """Return what ``function`` returns: only this process asks."""
        return function()

    def close(self) -> None:
        """Do nothing: no process outlives a run."""


def through_memory(devices: Sequence[torch.device]) -> bool:
    """Return whether workers pass tensors through shared memory: CPUs do, GPUs use NCCL."""
    return not any(map(is_accelerator, devices))


def forkserver() -> ForkServerContext:
    """Return what starts processes quickly."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOAD)
    return context


class _Crew:
    """The parent's side: the worker processes and the pipes to them."""

    def __init__(self, workers: int, replicated: bool) -> None:
        self._context = forkserver()
        self._workers = workers
        self._processes: list[BaseProcess] = []
        self._assignments: list[Connection] = []
        self._reports: list[Connection] = []
        self._lifelines: list[Connection] = []
        self._ports = [Port.new() for _ in range(workers + 1)]  # the last is the feeder's
        self._lanes = [Port.new() for _ in range(workers if replicated else 0)]
        self._feed_error: BaseException | None = None
        self._feed_failed, self._tell_feed_failed = self._context.Pipe(duplex=False)

    def start(self, index: int, assignment: bytes) -> None:
        """Start a worker and hand it its assignment."""
        assignments, to_worker = self._context.Pipe(duplex=False)
        from_report, report = self._context.Pipe(duplex=False)
        lifeline, my_lifeline = self._context.Pipe(duplex=False)
        process = self._context.Process(
            target=main,
            args=(
                assignments,
                report,
                lifeline,
                ports_for(index, self._ports),
                ports_for(index, self._lanes),
            ),
            name=f"pipekit worker {index}",
            daemon=True,
        )
        with without_main_module():
            process.start()
        for end in (assignments, report, lifeline):
            end.close()
        self._processes.append(process)
        self._assignments.append(to_worker)
        self._reports.append(from_report)
        self._lifelines.append(my_lifeline)
        to_worker.send_bytes(assignment)

    def feed(self, batches: Iterable[Batch], needs: Mapping[int, Needs]) -> None:
        """Send the workers the batches; runs in a thread of its own, once they have started."""
        share_cores(self._workers)  # as in the transport "threads", where workers read the data
        let_go(self._workers, self._ports)
        let_go(self._workers, self._lanes)
        inboxes = SharedInboxes(self._workers, self._ports)
        try:
            send_batches(batches, needs, inboxes)
        except (Aborted, OSError):
            return  # a worker is gone, or the run is over: whoever waits will know why
        except BaseException as error:
            self._feed_error = error
            self._tell_feed_failed.send_bytes(b"")

    def wait(self, on_loss: LossCallback | None) -> list[Report]:
        """Return all reports, or raise what went wrong first."""
        done: dict[int, Report] = {}
        aborted: str | None = None
        deadline: float | None = None
        sentinels = {process.sentinel: i for i, process in enumerate(self._processes)}
        pipes: dict[Any, int] = {pipe: i for i, pipe in enumerate(self._reports)}
        while len(done) < self._workers:
            timeout = None if deadline is None else max(0.0, deadline - time.monotonic())
            ready = wait([*pipes, *sentinels, self._feed_failed], timeout)
            if not ready:
                raise WorkerDied(f"the workers lost touch with one another: {aborted}")
            if self._feed_failed in ready and self._feed_error is not None:
                raise self._feed_error
            for pipe in [p for p in ready if p in pipes]:
                index = pipes[pipe]
                try:
                    kind, value = pickle.loads(pipe.recv_bytes())  # type: ignore[union-attr]
                except (EOFError, OSError):
                    del pipes[pipe]
                    continue
                if kind == "failed":
                    raise _with_cause(*value)
                if kind == "aborted":
                    aborted, deadline = value, deadline or time.monotonic() + GRACE_S
                elif kind == "loss" and on_loss is not None:
                    on_loss(*value)
                elif kind == "done":
                    done[index] = value
            for sentinel in [s for s in ready if s in sentinels and not self._unread(pipes, s)]:
                index = sentinels.pop(sentinel)
                self._processes[index].join()
                code = self._processes[index].exitcode
                raise WorkerDied(
                    f"worker {index}'s process ended in mid-run with exit code {code}"
                    + (f" (signal {-code}, killed?)" if code and code < 0 else "")
                )
        return [done[index] for index in range(self._workers)]

    def _unread(self, pipes: dict[Any, int], sentinel: Any) -> bool:
        """Return whether an ended process has left reports that were not read yet."""
        index = next(i for i, p in enumerate(self._processes) if p.sentinel == sentinel)
        return any(i == index and pipe.poll() for pipe, i in pipes.items())

    def end(self, feeder: threading.Thread) -> None:
        """End every process and the feeder, however they stand."""
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.join()
            process.close()
        if feeder.is_alive():
            feeder.join(GRACE_S)  # unless the user's iterator keeps it waiting
        for pipe in [*self._assignments, *self._reports, *self._lifelines]:
            pipe.close()
        for port in [*self._ports, *self._lanes]:
            port.close()


@contextmanager
def without_main_module() -> Iterator[None]:
    """Keep multiprocessing from running the user's script again in the child.

    What the child needs of it comes by value, through cloudpickle; so a script needs no
    ``if __name__ == "__main__"``.
    """
    main = sys.modules["__main__"]
    sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


def _with_cause(error: BaseException, text: str) -> BaseException:
    error.__cause__ = RemoteTraceback(text)
    return error
