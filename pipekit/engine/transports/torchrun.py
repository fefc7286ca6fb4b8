"""Under ``torchrun``: this process is one worker, and the others run the same script beside it."""

import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import count
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

from pipekit.devices import process_group, set_device
from pipekit.engine.assignment import Runner, WorkerAssignment, WorkerReport
from pipekit.engine.batches import Batch
from pipekit.engine.config import RunConfig
from pipekit.engine.feed import End, Feed, Needs, StopPoint
from pipekit.engine.observers.reporter import Listener
from pipekit.engine.transport import Aborted
from pipekit.engine.transports.between_processes import (
    Noticeboard,
    in_one_line,
    require_same_weights,
    shared_weights,
    tell_torchrun,
    telling,
    unequal,
)
from pipekit.engine.transports.distributed import (
    DistributedTransport,
    abort_if_broken,
    incoming,
    stay_on_loopback,
)
from pipekit.engine.transports.watchdog import Stalled, Watchdog, WorkerStates
from pipekit.engine.work import built, run
from pipekit.host.memory import keep_freed_memory
from pipekit.host.operator_threads import share_cores
from pipekit.host.parent import end_with_parent

T = TypeVar("T")

VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")  # of torchrun's processes
PATIENCE_S = 5.0  # after which it is said who is waited for
_RUNS, _JOINS = count(), count()  # of this process, which are the others' as well


def launched() -> bool:
    """Return whether this process was started by torchrun, or in its way.

    Batch systems set some of these variables for programs of all kinds, but not where to meet.
    """
    return all(name in os.environ for name in VARIABLES)


def rank() -> int:
    """Return which of the processes this is."""
    return int(os.environ["RANK"])


def of_this_machine(devices: Sequence[torch.device]) -> Sequence[torch.device]:
    """Return the devices of the processes that torchrun started beside this one."""
    first = rank() - int(os.environ.get("LOCAL_RANK", rank()))
    return devices[first : first + int(os.environ.get("LOCAL_WORLD_SIZE", len(devices)))]


class TorchrunRunner(Runner):
    """Runs the worker that this process is; the others' processes do so with theirs.

    No run ends early: nobody tells the other processes.
    """

    def __init__(self, devices: Sequence[torch.device]) -> None:
        self._devices = devices
        if "TORCHELASTIC_RUN_ID" in os.environ:  # and nobody else's process, say a shell's
            end_with_parent()

    def run(
        self,
        workers: Sequence[WorkerAssignment],
        config: RunConfig,
        batches: Iterable[Batch | End],
        on_news: Listener | None,
    ) -> list[WorkerReport]:
        """Return everybody's reports, but only this worker's stages in them.

        ``on_news`` is called where the last stage is.  A ValueError says that there are more or
        fewer processes than workers, or idle ones, or that they have read other batches; Aborted
        says what has failed in another process.
        """
        own = workers[_join_group(self._devices)]
        own = replace(own, incoming=incoming([each.steps for each in workers])[own.index])
        idle = sorted(set(range(config.table.workers)) - set(config.table.busy))
        if config.training and idle:
            raise ValueError(
                f"the schedule has nothing to do for worker {idle[0]}, whose weights would be left "
                f"behind: under torchrun, train on enough batches to give each worker one"
            )
        keep_freed_memory()  # as in worker processes: this one, too, is there for its worker alone
        cores = torch.get_num_threads()
        share_cores(int(os.environ.get("LOCAL_WORLD_SIZE", config.table.workers)), cores)
        states, stop_point = WorkerStates(config.table.workers), StopPoint()
        board = Noticeboard(next(_RUNS), own.index, config.table.workers)
        data = board.compared(batches, partial(states.reading, own.index))
        feed = Feed(data, config.loss, Needs.of(own.steps), end=stop_point.at)
        transport = DistributedTransport(own, config, feed, read_ahead=True)
        transport.stop_point = stop_point
        about = config.table.stage_workers, config.execution.timeout, board.others, board.look
        watchdog = Watchdog(states, {own.index: own.steps}, *about)
        try:
            with watchdog.looking(_end):
                call = "train()" if config.training else "evaluate() or predict()"
                given = everybodys(call, (config.batches, shared_weights(own, config)))
                if len({batches for batches, _ in given}) > 1:
                    raise ValueError(unequal({n: count for n, (count, _) in enumerate(given)}))
                require_same_weights([weights for _, weights in given])
                with abort_if_broken():
                    dist.barrier()
                origin = time.perf_counter()  # machines' clocks start anywhere; all leave it now
                report = run(built(own), config, transport, feed, on_news, [states])
                shared = replace(report, record=report.record.later(-origin), stages={})
                each_one = everybodys("the end of a run", (shared, board.latest))
                for worker, (_, checksums) in enumerate(each_one):
                    board.require_same(worker, checksums)
        except Aborted as error:
            raise Aborted(board.cause()) from error.__cause__
        except BaseException as error:
            board.failed(error)
            raise
        finally:
            torch.set_num_threads(cores)
        reports = [replace(each, record=each.record.later(origin)) for each, _ in each_one]
        reports[own.index] = replace(reports[own.index], stages=report.stages)
        return reports

    def gather(self, state: dict[str, T]) -> dict[str, T]:
        # Of a stage's workers the first counts: each has running statistics of its own.
        try:
            parts = reversed(everybodys("state_dict() or the like", state))
        except Aborted as error:
            raise Aborted(
                f"another process has ended before this call, state_dict() say, which under "
                f"torchrun all processes make, and none alone, `if rank == 0` ({error})"
            ) from error
        return {name: tensor for part in parts for name, tensor in part.items()}

    def agree(self, function: Callable[[], T]) -> T:
        values: list[T | None] = [function() if _join_group(self._devices) == 0 else None]
        dist.broadcast_object_list(values)
        return cast(T, values[0])

    def close(self) -> None:
        """Do nothing: the process group is the program's."""


def _end(stalled: Exception) -> None:
    """End this process, in whatever it is stuck; torchrun then ends the others."""
    said = str(stalled) if isinstance(stalled, Stalled) else in_one_line(stalled)
    tell_torchrun(said)
    print(f"pipekit: {said}", file=sys.stderr, flush=True)
    os._exit(1)


def everybodys(call: str, value: Any) -> list[Any]:
    """Return what every worker gave, in their order; ValueError: they are in different calls."""
    values: list[Any] = [None] * dist.get_world_size()
    with abort_if_broken():
        dist.all_gather_object(values, (call, value))
    if others := [n for n, (other, _) in enumerate(values) if other != call]:
        raise ValueError(
            f"worker {dist.get_rank()} is in {call}, and worker {others[0]} in "
            f"{values[others[0]][0]}: under torchrun all processes make the same calls of a "
            f"pipeline, which none may leave out, as by `if rank == 0`"
        )
    return [value for _, value in values]


def _join_group(devices: Sequence[torch.device]) -> int:
    """Join the process group that torchrun described, and return this worker's number."""
    started = dist.get_world_size() if dist.is_initialized() else int(os.environ["WORLD_SIZE"])
    if started != len(devices):
        raise ValueError(
            f"torchrun started {started} processes and the schedule has {len(devices)} workers: "
            f"start it with --nproc-per-node so that there are {len(devices)}; without torchrun, "
            f"take {', '.join(VARIABLES)} out of the environment"
        )
    device = devices[dist.get_rank() if dist.is_initialized() else rank()]
    set_device(device)  # in this thread, whoever has joined the group
    if not dist.is_initialized():
        if os.environ.get("LOCAL_WORLD_SIZE") == os.environ["WORLD_SIZE"]:
            stay_on_loopback()
        # Nobody must find where those of an earlier attempt, or group, were to be reached.
        attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        sys.excepthook = telling(sys.excepthook)
        with _said_if_it_takes_long(started):
            store, number, size = next(rendezvous("env://"))
            dist.init_process_group(
                **process_group(device),
                store=PrefixStore(f"attempt {attempt}, group {next(_JOINS)}", store),
                rank=number,
                world_size=size,
            )
    return dist.get_rank()


@contextmanager
def _said_if_it_takes_long(processes: int) -> Iterator[None]:
    """Say who is waited for, where somebody else than torchrun has set its variables."""
    says = (
        f"pipekit: waiting for all {processes} processes that torchrun starts; if there is no "
        f"torchrun, take {', '.join(VARIABLES)} out of the environment"
    )
    timer = threading.Timer(PATIENCE_S, print, [says], {"file": sys.stderr, "flush": True})
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
