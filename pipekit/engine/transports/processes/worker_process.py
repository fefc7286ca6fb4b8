"""A worker in a process of its own: it takes what it is to do, run after run, and reports."""

import contextlib
import gc
import multiprocessing.forkserver
import os
import pickle
import signal
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from pipekit.devices import process_group, set_device
from pipekit.engine.assignment import WorkerAssignment, WorkerReport
from pipekit.engine.config import Loss, RunConfig
from pipekit.engine.execution.stage import StageSource
from pipekit.engine.feed import Feed, Needs
from pipekit.engine.observers.reporter import News
from pipekit.engine.transport import Aborted, Transport
from pipekit.engine.transports.distributed import DistributedTransport, stay_on_loopback
from pipekit.engine.transports.mailbox import KeyedMailbox, MailboxTransport
from pipekit.engine.transports.processes.feeder import received_batches
from pipekit.engine.transports.processes.pickling import Sender, TravellingError, dumps
from pipekit.engine.transports.processes.shared_mailbox import (
    Endpoint,
    SharedBuffer,
    SharedMailboxes,
)
from pipekit.engine.transports.watchdog import WorkerStates
from pipekit.engine.work import built, run
from pipekit.host.memory import keep_freed_memory, not_collected
from pipekit.host.numeric_settings import apply_settings
from pipekit.host.operator_threads import share_cores
from pipekit.host.parent import end_with_parent
from pipekit.layers.named_values import NamedValues, Place
from pipekit.layers.user_functions import FunctionState

Content = tuple[nn.Sequential, dict[str, Any] | None]
"""Of a trained stage: its layers, and the state of optimizer, scheduler and loss scaler."""

READ_STAGES = b""  # in place of a task: hand over the stages of the last training


@dataclass(frozen=True)
class ProcessTask:
    """What a worker process gets for one run."""

    assignment: WorkerAssignment
    kept: bool  # whether the worker goes on with the stages of its last training
    config: bytes  # of the run, but for the loss, pickled
    loss: bytes  # of the run, pickled
    settings: tuple[Any, ...]  # of torch, in the process that asks
    named: Mapping[Place, Any]  # what functions name there, as far as it has changed
    store: str | None  # where processes meet for torch.distributed; None: they share memory
    watched: bool  # whether every loss is reported at once


@dataclass(frozen=True)
class Connections:
    """What a worker process is started with."""

    index: int
    workers: int
    tasks: Connection
    reports: Connection
    lifeline: Connection  # ends with the parent
    endpoints: Sequence[Endpoint]  # of all workers, of the feeder, and of all workers for sums
    states: SharedBuffer


def main(connections: Connections) -> None:
    """Be a worker process, until the parent ends it or a run fails."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupt is the parent's to handle
    end_with_parent()  # the fork server, which ends with its own, once nobody here keeps it
    kept = multiprocessing.forkserver._forkserver._forkserver_alive_fd  # type: ignore[attr-defined]
    with contextlib.suppress(OSError, TypeError):
        os.close(kept)
    keep_freed_memory()
    gc.freeze()  # what is imported stays: Python looks at it no more whenever many steps are made
    threading.Thread(target=_end_with_parent, args=(connections.lifeline,), daemon=True).start()
    worker, goes_on = _WorkerProcess(connections), True
    while goes_on:
        try:
            data = connections.tasks.recv_bytes()
        except EOFError:
            break
        goes_on, report = worker.outcome(data)
        if not goes_on:
            # The parent may still be writing the task: it must not wait for a reader.
            connections.tasks.close()
        with contextlib.suppress(OSError):  # the parent is gone
            connections.reports.send_bytes(report)
    threading.Event().wait()  # peers may still be receiving what was sent: the parent ends us


def _end_with_parent(lifeline: Connection) -> None:
    """End this process as soon as the parent's end of the pipe is gone, whatever ended it."""
    with contextlib.suppress(EOFError, OSError):
        lifeline.recv_bytes()
    os._exit(1)


class _WorkerProcess:
    """What a worker process keeps from one run to the next."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        index, endpoints, first = connections.index, connections.endpoints, connections.workers + 1
        self._sender = Sender(endpoints[index].buffer)
        self._mailboxes = SharedMailboxes(index, endpoints)
        self._sums_mailboxes: SharedMailboxes | None = None
        if len(endpoints) > first:
            self._sums_mailboxes = SharedMailboxes(first + index, endpoints, first)
        self._random_state = torch.get_rng_state()  # each run draws as if its process were new
        # Of the last training, as it was sent, and with what it counts here.
        self._loss: tuple[bytes, Loss] | None = None
        self._stages: Mapping[int, StageSource] = {}  # of the last training
        self._named: dict[Place, Any] = {}  # as they were by themselves
        self._runs = 0

    def outcome(self, data: bytes) -> tuple[bool, bytes]:
        """Do a task; return whether the worker goes on, and what came of it, both pickled."""
        reads = data == READ_STAGES
        given: list[Content] | WorkerReport
        try:
            if reads:
                configs = (stage.config for stage in self._stages.values())
                given = [(each.module, each.state) for each in configs]
            else:
                with not_collected():  # a long table is many small objects
                    task = pickle.loads(data)
                given = self._run(task)
            return True, pickle.dumps(("done", self._sender.parcel(given)))
        except Aborted as error:
            return False, dumps(("aborted", str(error)))
        except BaseException as error:  # stages that cannot travel are still here
            return reads, dumps(("failed", TravellingError(error)))

    def _run(self, task: ProcessTask) -> WorkerReport:
        """Do what a run asks of this worker; its report is without the stages."""
        self._runs += 1
        assignment = task.assignment
        apply_settings(task.settings)
        loss = self._loss
        if loss is None or loss[0] != task.loss:
            loss = task.loss, pickle.loads(task.loss)
        config: RunConfig = replace(pickle.loads(task.config), loss=loss[1])
        if config.training:
            self._loss = loss
        if task.named:
            stages = self._stages if task.kept else assignment.stages
            objects = [config.loss, *named_by(replace(assignment, stages=stages))]
            NamedValues(objects, self._named).apply(task.named)
        share_cores(config.table.workers, torch.get_num_threads())  # as the caller has it
        torch.set_rng_state(self._random_state)
        needs = Needs.of(assignment.steps)
        # If another worker has failed, the parent ends this one.
        mailbox = KeyedMailbox(self._mailboxes.put, self._mailboxes.get, run=self._runs)
        feeder = config.table.workers if needs.inputs else None
        feed = Feed(received_batches(mailbox, feeder, self._runs), config.loss, needs)
        transport = self._transport(task, config, feed, mailbox)
        states = WorkerStates(config.table.workers, self._connections.states.map(0))
        if config.training:
            if not task.kept:
                self._stages = built(assignment).stages
            assignment = replace(assignment, stages=self._stages)

        def on_news(news: News) -> None:
            self._connections.reports.send_bytes(pickle.dumps(("news", news)))

        own, told = FunctionState(config.loss), on_news if task.watched else None
        report = run(assignment, config, transport, feed, told, [states])
        changed: Mapping[str, Any] = {}
        with contextlib.suppress(TypeError):  # what cannot travel stays here
            dumps(found := own.changed())
            changed = found
        if self._sums_mailboxes:  # notes of the end for which no sum has waited
            self._sums_mailboxes.clear()
        error: Any = report.error and TravellingError(report.error)
        return replace(report, stages={}, loss_values=changed, error=error)

    def _transport(
        self, task: ProcessTask, config: RunConfig, feed: Feed, mailbox: KeyedMailbox
    ) -> Transport:
        assignment, workers = task.assignment, config.table.workers
        if task.store is not None:
            _join_group(task.store, assignment.index, workers, assignment.device)
            # The feeder sends no batch before the first stage has come near it.
            return DistributedTransport(assignment, config, feed, read_ahead=False)

        sums, end = None, partial(self._mailboxes.tell_end, self._runs)
        if boxes := self._sums_mailboxes:
            about = mailbox.stop_point, self._runs
            sums = KeyedMailbox(boxes.put, boxes.get, mailbox.require_peers, *about)
        return MailboxTransport(assignment.index, config.table.busy, mailbox, sums, end)


def named_by(worker: WorkerAssignment) -> list[Any]:
    """Return the modules and functions of a worker, whose names have values in each process."""
    known = [stage.known for stage in worker.stages.values()]
    modules = [stage.module for stage in known] + [each.part.module for each in worker.inference]
    return [*modules, *(stage.optimizer for stage in known)]


def _join_group(store: str, index: int, workers: int, device: torch.device) -> None:
    """Connect this process to the others, unless it is connected."""
    if dist.is_initialized():
        return
    set_device(device)
    stay_on_loopback()
    dist.init_process_group(
        **process_group(device),
        store=dist.FileStore(store, workers),  # type: ignore[attr-defined]
        rank=index,
        world_size=workers,
        timeout=timedelta(days=1),
    )
