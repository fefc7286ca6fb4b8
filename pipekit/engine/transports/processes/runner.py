"""Runs workers in processes that are started from here: from a script or a notebook kernel."""

import multiprocessing
import os
import sys
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache, cached_property, partial
from itertools import chain
from types import CodeType
from typing import Any, cast

import torch

from pipekit.devices import is_accelerator, require_one_each
from pipekit.engine.assignment import Runner, WorkerAssignment, WorkerReport
from pipekit.engine.batches import Batch
from pipekit.engine.calls import deferred_interrupts
from pipekit.engine.config import RunConfig
from pipekit.engine.execution.stage import StageConfig
from pipekit.engine.feed import End, Needs
from pipekit.engine.observers.reporter import Listener
from pipekit.engine.transports import torchrun
from pipekit.engine.transports.distributed import incoming
from pipekit.engine.transports.processes.forkserver import WorkerDied, forkserver
from pipekit.engine.transports.processes.pickling import dumps
from pipekit.engine.transports.processes.worker_pool import WorkerPool
from pipekit.engine.transports.processes.worker_process import Content, ProcessTask, named_by
from pipekit.engine.transports.watchdog import Watchdog
from pipekit.host.numeric_settings import numeric_settings
from pipekit.layers.named_values import NamedValues, Place
from pipekit.layers.user_functions import FunctionState


class ProcessRunner(Runner):
    """Runs every worker in a process of its own, and keeps the processes until anything fails."""

    copies_loss = True

    def __init__(self, devices: Sequence[torch.device]) -> None:
        # Workers on CPUs pass tensors through shared memory, where whoever waits hears of the end.
        self.can_end = not any(map(is_accelerator, devices))
        self._pool: WorkerPool | None = None
        self._close_pool: Callable[[], object] = lambda: None
        self._kind: Any = None  # of the pool: what a run must agree with to use it again
        self._left: list[dict[int, StageLeft]] = []  # what each worker of the pool has
        self._named: dict[Place, Any] = {}  # what functions name there
        self._codes: dict[tuple[str, str], CodeType] = {}  # of functions, as they have them there
        self._loss: tuple[bytes, bytes] | None = None  # as the last training left it, and was sent

    def run(
        self,
        workers: Sequence[WorkerAssignment],
        config: RunConfig,
        batches: Iterable[Batch | End],
        on_news: Listener | None,
    ) -> list[WorkerReport]:
        """Return the workers' reports; their stages stay where they are until they are read.

        An error has its worker's traceback as its cause; WorkerDied says that one was killed.
        """
        cores = torch.get_num_threads()
        objects = [config.loss, *chain.from_iterable(map(named_by, workers))]
        named = NamedValues(objects, self._named)
        memory, pool = self.can_end, self._pool_for(config, named.codes)
        try:
            # The rest once for all: it names every sum of every update.
            rest, loss = dumps(replace(config, loss=cast(Any, None))), dumps(config.loss)
            if self._loss and self._loss[0] == loss:
                loss = self._loss[1]  # with all that it counts there
            common = rest, loss, numeric_settings()
            # Through shared memory messages are taken by name, in any order.
            coming = [{}] * len(workers) if memory else incoming([w.steps for w in workers])
            store = None if memory else pool.store
            changed, tasks = named.changed(), []
            for worker, messages in zip(workers, coming, strict=True):
                kept = worker.stages == (self._left[worker.index] if self._left else {})
                stages = {} if kept else {n: each.config for n, each in worker.stages.items()}
                here = replace(worker, stages=stages, incoming=messages)
                told = on_news is not None
                tasks.append(dumps(ProcessTask(here, kept, *common, changed, store, told)))
                pool.states.restart(worker.index)
            needs = {worker.index: Needs.of(worker.steps) for worker in workers}
            # Between accelerators, every worker wants to know the shapes of every batch.
            heard = {w: n for w, n in needs.items() if any(n) or not memory}
            steps = {worker.index: worker.steps for worker in workers}
            about = config.table.stage_workers, config.execution.timeout, pool.stopped
            watchdog = Watchdog(pool.states, steps, *about)
            if config.training:
                self._left = []  # if the run fails, there is nothing to read
            reports = pool.run(tasks, batches, heard, on_news, watchdog)
            for report in reports:
                FunctionState(config.loss).take(report.loss_values)
            if not config.training:
                return reports
            self._loss = dumps(config.loss), loss
            for worker in workers:
                fetch = cache(partial(pool.stages, worker.index))  # of all its stages, once
                each = enumerate(worker.stages.items())
                self._left.append({n: StageLeft(s.known, fetch, place) for place, (n, s) in each})
            pairs = zip(reports, self._left, strict=True)
            return [replace(report, stages=left) for report, left in pairs]
        finally:
            torch.set_num_threads(cores)
            if not pool.ready:
                self.close()

    def close(self) -> None:
        """End the processes, once what they have of the model is here."""
        with deferred_interrupts():
            try:
                for stage in chain.from_iterable(left.values() for left in self._left):
                    _ = stage.config
            except WorkerDied:
                pass  # whoever needs it is told then
            finally:
                self._close_pool()
                self._pool, self._left = None, []

    def _pool_for(self, config: RunConfig, codes: Mapping[tuple[str, str], CodeType]) -> WorkerPool:
        """Return the last run's processes, or others if these cannot do this run."""
        folder = ""
        with suppress(OSError):  # it is gone
            folder = os.getcwd()
        # A new process starts where this one is, and imports from where this one does.
        kind, with_sums = (folder, *sys.path), config.table.shared
        lacks_sums = self._pool and with_sums and not self._pool.with_sums
        reloaded = any(self._codes.get(name, code) != code for name, code in codes.items())
        other = self._kind != kind or lacks_sums or reloaded
        if self._pool is None or not self._pool.ready or other:
            self.close()
            self._named.clear()
            self._codes.clear()
            self._loss = None
            with deferred_interrupts():
                self._pool, self._kind = WorkerPool(config.table.workers, with_sums), kind
                # Not a method of this object, which would keep it alive.
                self._close_pool = weakref.finalize(self, self._pool.close)
            try:
                self._pool.start()
            except BaseException:
                self.close()
                raise
        self._codes.update(codes)
        return self._pool


class StageLeft:
    """A stage that stays in its worker's process after a run, until somebody here reads it.

    The next run begins with what each process has.  Until it is read, ``known`` is the config with
    which the run began.
    """

    def __init__(
        self, known: StageConfig, fetch: Callable[[], Sequence[Content]], place: int
    ) -> None:
        self.known, self._fetch, self._place = known, fetch, place

    @cached_property
    def config(self) -> StageConfig:
        """As it stands; raises WorkerDied if its process has ended."""
        self.known = self.known.trained(*self._fetch()[self._place])
        return self.known


def over_processes(devices: Sequence[torch.device]) -> Runner:
    """Return what runs each worker in a process: torchrun's, if it started this one, or its own."""
    if torchrun.launched():
        require_one_each(torchrun.of_this_machine(devices))
        return torchrun.TorchrunRunner(devices)
    if multiprocessing.current_process().daemon:
        raise ValueError(
            "this process is daemonic, as those of a multiprocessing.Pool are, and may start no "
            "others: use transport='threads', or train in a multiprocessing.Process of your own"
        )
    require_one_each(devices)
    forkserver()  # it imports torch while the user's program goes on
    return ProcessRunner(devices)
