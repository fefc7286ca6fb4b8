"""A worker in a process of its own: takes an assignment, reports, and ends with its parent."""

import contextlib
import os
import pickle
import signal
import threading
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import Any

import cloudpickle
import torch
import torch.distributed as dist
from torch import Tensor

from pipekit.devices import process_group_backend, set_device
from pipekit.engine.batches import Feed, Needs
from pipekit.engine.config import RunConfig
from pipekit.engine.transport import Aborted, Transport
from pipekit.engine.transports.distributed import DistributedLinks
from pipekit.engine.transports.feeder import received_batches
from pipekit.engine.transports.loopback import stay_on_loopback
from pipekit.engine.transports.mailbox import InboxLinks
from pipekit.engine.transports.shared_mailbox import Port, SharedInboxes
from pipekit.engine.work import Report, WorkerAssignment, run
from pipekit.operator_threads import share_cores


@dataclass(frozen=True)
class Assignment:
    """Everything that a worker process needs."""

    worker: WorkerAssignment
    config: RunConfig
    store: str | None  # where they meet who use torch.distributed; None: use shared memory
    watched: bool


def main(
    assignments: Connection,
    report: Connection,
    lifeline: Connection,
    ports: Sequence[Port],
    lanes: Sequence[Port],
) -> None:
    """Be a worker process: one assignment, then wait to be ended.

    Args:
        assignments: where it comes from.
        report: where what came of it goes.
        lifeline: ends when the parent does.
        ports: for what passes between stages.
        lanes: for what the workers of a stage tell one another, if any stage has several.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupt is the parent's to handle
    threading.Thread(target=_end_with_parent, args=(lifeline,), daemon=True).start()
    try:
        assignment: Assignment = cloudpickle.loads(assignments.recv_bytes())
        result: tuple[str, Any] = "done", _run(assignment, report, ports, lanes)
    except Aborted as error:
        result = "aborted", str(error)
    except BaseException as error:
        result = "failed", (portable(error), traceback.format_exc())
    report.send_bytes(cloudpickle.dumps(result))
    threading.Event().wait()  # peers may still be receiving what was sent: the parent ends us


def _run(
    assignment: Assignment, report: Connection, ports: Sequence[Port], lanes: Sequence[Port]
) -> Report:
    worker, config = assignment.worker, assignment.config
    index, device = worker.index, worker.device
    share_cores(config.workers)
    needs = Needs.of(worker.steps)
    inboxes = SharedInboxes(index, ports)
    local = InboxLinks(index, config.busy, inboxes, SharedInboxes(index, lanes) if lanes else None)
    feed = Feed(received_batches(local, inboxes, config.workers if needs.inputs else None), needs)
    links: Transport = local
    if assignment.store is not None:
        _join_group(assignment.store, index, config.workers, device)
        # The feeder sends no batch before the first stage has come near it.
        links = DistributedLinks(worker, config, feed, read_ahead=False)

    def on_loss(microbatch: int, loss: Tensor) -> None:
        report.send_bytes(pickle.dumps(("loss", (microbatch, loss.item()))))

    return run(worker, config, links, feed, on_loss if assignment.watched else None)


def _join_group(store: str, index: int, workers: int, device: torch.device) -> None:
    """Connect a process with a GPU to the others."""
    set_device(device)
    stay_on_loopback()
    dist.init_process_group(
        process_group_backend(device),
        store=dist.FileStore(store, workers),  # type: ignore[attr-defined]
        rank=index,
        world_size=workers,
        timeout=timedelta(days=1),
    )


def _end_with_parent(lifeline: Connection) -> None:
    """End this process as soon as the parent's end of the pipe is gone, whatever ended it."""
    with contextlib.suppress(EOFError, OSError):
        lifeline.recv_bytes()
    os._exit(1)


def portable(error: BaseException) -> BaseException:
    """Return the exception if it can travel, else one that says the same."""
    try:
        pickle.loads(cloudpickle.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error
