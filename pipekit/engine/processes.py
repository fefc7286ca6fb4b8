"""One process a worker, started from here: from a script or a notebook kernel, on one machine.

A fork server that has imported torch starts workers in a tenth of a second, where a fresh
interpreter takes seconds and a plain fork may deadlock after a multi-threaded operator.
"""

import contextlib
import multiprocessing
import os
import pickle
import signal
import socket
import sys
import tempfile
import threading
import time
import traceback
import types
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import cloudpickle
import torch
import torch.distributed as dist
from torch import Tensor

from pipekit.engine.cores import share_cores
from pipekit.engine.distributed import DistributedLinks, roles
from pipekit.engine.inbox_links import InboxLinks
from pipekit.engine.links import Aborted, Links
from pipekit.engine.microbatches import Batch, Feed
from pipekit.engine.parcels import pack, unpack
from pipekit.engine.shared_inboxes import Port, SharedInboxes, ports_for
from pipekit.engine.stage import StageSpec
from pipekit.engine.worker import Job, LossCallback, Report, work
from pipekit.schedules import Step

# torch imports the second one, for 1.5 s, when it makes its first optimizer.
PRELOAD = ["pipekit.engine.processes", "torch._dynamo"]
GRACE_S = 3.0  # how long the first failure may take to arrive after its consequences


class WorkerDied(RuntimeError):
    """A worker process ended without a word, killed from outside or by its own native code."""


class RemoteTraceback(Exception):
    """The traceback of an exception in a worker process; the cause of the one raised here."""

    def __str__(self) -> str:
        return f"\n\n{self.args[0]}"


@dataclass(frozen=True)
class _Assignment:
    """Everything that a worker process needs."""

    index: int
    lowered: Sequence[Sequence[Step]]
    specs: Sequence[StageSpec]
    job: Job
    device: torch.device
    store: str | None  # where they meet who use torch.distributed; None: use shared memory
    watched: bool


def run_processes(
    lowered: Sequence[Sequence[Step]],
    specs: Sequence[Sequence[StageSpec]],
    job: Job,
    batches: Iterable[Batch],
    devices: Sequence[torch.device],
    on_loss: LossCallback | None,
) -> list[Report]:
    """Run every worker in a process of its own; see :func:`pipekit.engine.threads.run_threads`.

    Raises:
        Exception: the first that any worker raised, with that worker's traceback as its cause.
        WorkerDied: a worker's process was killed.
    """
    on_cpus = all(device.type == "cpu" for device in devices)
    with tempfile.TemporaryDirectory(prefix="pipekit-") as folder:
        crew = _Crew(len(lowered))
        feeder = threading.Thread(
            target=crew.feed, args=(batches, lowered), name="pipekit feeder", daemon=True
        )
        try:
            for index, steps in enumerate(specs):
                assignment = _Assignment(
                    index,
                    lowered,
                    steps,
                    job,
                    devices[index],
                    None if on_cpus else str(Path(folder, "store")),
                    on_loss is not None,
                )
                crew.start(index, cloudpickle.dumps(assignment))
            crew.started()
            feeder.start()
            return crew.wait(on_loss)
        finally:
            crew.end(feeder)


class _Crew:
    """The parent's side: the worker processes and the pipes to them."""

    def __init__(self, workers: int) -> None:
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(PRELOAD)
        self._workers = workers
        self._processes: list[BaseProcess] = []
        self._data: list[Connection] = []
        self._reports: list[Connection] = []
        self._lifelines: list[Connection] = []
        self._ports = [Port.new() for _ in range(workers)]
        self._feed_error: BaseException | None = None
        self._feed_failed, self._tell_feed_failed = self._context.Pipe(duplex=False)

    def start(self, index: int, assignment: bytes) -> None:
        """Start a worker and hand it its assignment."""
        data, to_data = self._context.Pipe(duplex=False)
        from_report, report = self._context.Pipe(duplex=False)
        lifeline, my_lifeline = self._context.Pipe(duplex=False)
        process = self._context.Process(
            target=_main,
            args=(data, report, lifeline, ports_for(index, self._ports)),
            name=f"pipekit worker {index}",
            daemon=True,
        )
        with _without_main_module():
            process.start()
        for end in (data, report, lifeline):
            end.close()
        self._processes.append(process)
        self._data.append(to_data)
        self._reports.append(from_report)
        self._lifelines.append(my_lifeline)
        to_data.send_bytes(assignment)

    def started(self) -> None:
        """Let go of what only workers use, once all have it: a pipe ends with its readers."""
        for port in self._ports:
            port.close()
        self._ports.clear()

    def feed(self, batches: Iterable[Batch], lowered: Sequence[Sequence[Step]]) -> None:
        """Send every worker what it needs of each batch; runs in a thread of its own."""
        wants = [roles(steps) for steps in lowered]
        try:
            for batch in batches:
                for (input, target), pipe in zip(wants, self._data, strict=True):
                    part = batch._replace(
                        input=batch.input if input else None,
                        target=batch.target if target else None,
                    )
                    pipe.send_bytes(pack(part))
        except OSError:
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
        self.started()
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.join()
            process.close()
        if feeder.is_alive():
            feeder.join(GRACE_S)  # unless the user's iterator keeps it waiting
        for pipe in [*self._data, *self._reports, *self._lifelines]:
            pipe.close()


def _main(
    data: Connection, report: Connection, lifeline: Connection, ports: Sequence[Port]
) -> None:
    """Be a worker process: one assignment, then wait to be ended."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupt is the parent's to handle
    threading.Thread(target=_end_with_parent, args=(lifeline,), daemon=True).start()
    try:
        assignment: _Assignment = cloudpickle.loads(data.recv_bytes())
        result: tuple[str, Any] = "done", _run(assignment, data, report, ports)
    except Aborted as error:
        result = "aborted", str(error)
    except BaseException as error:
        result = "failed", (_portable(error), traceback.format_exc())
    report.send_bytes(cloudpickle.dumps(result))
    threading.Event().wait()  # peers may still be receiving what was sent: the parent ends us


def _run(
    assignment: _Assignment, data: Connection, report: Connection, ports: Sequence[Port]
) -> Report:
    lowered, index, device = assignment.lowered, assignment.index, assignment.device
    share_cores(len(lowered))
    feed = Feed(_received(data), *roles(lowered[index]), ready=data.poll)
    if assignment.store is None:
        links: Links = InboxLinks(index, len(lowered), SharedInboxes(index, ports))
    else:
        _join_group(assignment.store, index, len(lowered), device)
        links = DistributedLinks(lowered, index, feed, device)

    def on_loss(microbatch: int, loss: Tensor) -> None:
        report.send_bytes(pickle.dumps(("loss", (microbatch, loss.item()))))

    watched = on_loss if assignment.watched else None
    return work(lowered[index], assignment.specs, assignment.job, links, feed, device, watched)


def _join_group(store: str, index: int, workers: int, device: torch.device) -> None:
    """Connect a process with a GPU to the others."""
    if device.type == "cuda":
        torch.cuda.set_device(device)
    _stay_on_loopback()
    dist.init_process_group(
        "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo",
        store=dist.FileStore(store, workers),  # type: ignore[attr-defined]
        rank=index,
        world_size=workers,
        timeout=timedelta(days=1),
    )


def _received(data: Connection) -> Iterator[Batch]:
    while True:
        yield unpack(data.recv_bytes())


def _stay_on_loopback() -> None:
    """Make gloo listen on the loopback interface, unless told otherwise."""
    loopback = next((name for _, name in socket.if_nameindex() if name.startswith("lo")), None)
    if loopback is not None:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", loopback)


def _end_with_parent(lifeline: Connection) -> None:
    """End this process as soon as the parent's end of the pipe is gone, whatever ended it."""
    with contextlib.suppress(EOFError, OSError):
        lifeline.recv_bytes()
    os._exit(1)


@contextlib.contextmanager
def _without_main_module() -> Iterator[None]:
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


def _portable(error: BaseException) -> BaseException:
    """Return the exception if it can travel, else one that says the same."""
    try:
        pickle.loads(cloudpickle.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error


def _with_cause(error: BaseException, text: str) -> BaseException:
    error.__cause__ = RemoteTraceback(text)
    return error
