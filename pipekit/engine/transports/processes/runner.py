"""Runs workers in processes that are started from here: from a script or a notebook kernel."""

import os
import sys
import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from pipekit.devices import is_accelerator
from pipekit.engine.batches import Batch, End, Needs
from pipekit.engine.config import RunConfig
from pipekit.engine.execution.stage import StageConfig, StageSource
from pipekit.engine.interrupts import deferred_interrupts
from pipekit.engine.observers.reporter import Listener
from pipekit.engine.transports import torchrun
from pipekit.engine.transports.distributed import incoming
from pipekit.engine.transports.processes.parcels import dumps
from pipekit.engine.transports.processes.stages_left import StageLeft, StagesLeft
from pipekit.engine.transports.processes.worker_handle import WorkerDied
from pipekit.engine.transports.processes.worker_pool import WorkerPool
from pipekit.engine.transports.processes.worker_process import ProcessTask
from pipekit.engine.transports.runner import Runner, same_stages
from pipekit.engine.transports.watchdog import Watchdog
from pipekit.engine.work import WorkerAssignment, WorkerReport
from pipekit.host.numeric_settings import NumericSettings


class ProcessRunner(Runner):
    """Runs every worker in a process of its own, and keeps the processes for the next run.

    They end with this object, by :meth:`close`, with this process, or when anything fails.
    """

    def __init__(self) -> None:
        self._pool: WorkerPool | None = None
        self._close_pool: Callable[[], object] = lambda: None
        self._kind: Any = None  # of the pool: what a run must agree with to use it again
        self._left: list[StagesLeft] = []  # what each worker of the pool has

    def run(
        self,
        workers: Sequence[WorkerAssignment],
        config: RunConfig,
        batches: Iterable[Batch | End],
        on_news: Listener | None,
    ) -> list[WorkerReport]:
        """Return the workers' reports; their stages stay where they are until they are read.

        Raises:
            Exception: the first that any worker raised, with that worker's traceback as its cause.
            WorkerDied: a worker's process was killed.
        """
        cores = torch.get_num_threads()
        devices = [worker.device for worker in workers]
        memory = through_memory(devices)
        pool = self._pool_for(config, devices)
        try:
            store = None if memory else pool.store()
            # Once for all: it names every sum of every update.
            rest = {name: each for name, each in vars(config).items() if name != "loss"}
            common = dumps(partial(RunConfig, **rest)), dumps(config.loss)
            shared = *common, NumericSettings.here()
            if store:  # through shared memory messages are taken by name, in any order
                coming = incoming([worker.steps for worker in workers])
                pairs = zip(workers, coming, strict=True)
                workers = [replace(worker, incoming=messages) for worker, messages in pairs]
            tasks = [self._task(worker, shared, store, on_news is not None) for worker in workers]
            needs = {worker.index: Needs.of(worker.steps) for worker in workers}
            # Between accelerators, every worker wants to know the shapes of every batch.
            heard = {w: n for w, n in needs.items() if any(n) or not memory}
            steps = {worker.index: worker.steps for worker in workers}
            timeout = config.execution.timeout
            watchdog = Watchdog(pool.states, steps, config.stage_workers, timeout)
            if config.training:
                self._left = []  # if the run fails, there is nothing to read
            reports = pool.run(tasks, batches, heard, on_news, watchdog, config.begin)
            if not config.training:
                return reports
            self._left = [
                StagesLeft(_known(worker.stages), partial(pool.stages, worker.index))
                for worker in workers
            ]
            return [
                replace(report, stages=left.stages)
                for report, left in zip(reports, self._left, strict=True)
            ]
        finally:
            torch.set_num_threads(cores)
            if not pool.ready:
                self.close()

    def can_end(self, devices: Sequence[torch.device]) -> bool:
        return through_memory(devices)

    def close(self) -> None:
        """End the processes, once what they have of the model is here."""
        with deferred_interrupts():
            try:
                for left in self._left:
                    left.read()
            except WorkerDied:
                pass  # whoever needs it is told then
            finally:
                self._close_pool()
                self._pool, self._left = None, []

    def _task(
        self,
        worker: WorkerAssignment,
        shared: tuple[bytes, bytes, NumericSettings],
        store: str | None,
        watched: bool,
    ) -> bytes:
        """Return what a worker is to do, without the stages that it has.

        ``shared`` is what makes the run's configuration of its loss, and the loss, pickled, and
        torch's settings.
        """
        left = self._left[worker.index].stages if self._left else ()
        kept = same_stages(left, worker.stages)
        stages = () if kept else [_here(stage) for stage in worker.stages]
        assignment = replace(worker, stages=stages)
        return dumps(ProcessTask(assignment, kept, *shared, store, watched))

    def _pool_for(self, config: RunConfig, devices: Sequence[torch.device]) -> WorkerPool:
        """Return the last run's processes, or others if these cannot do this run."""
        with_sums = any(len(workers) > 1 for workers in config.stage_workers)
        # A new process starts where this one is, and imports from where this one does.
        kind = with_sums, tuple(devices), _working_folder(), tuple(sys.path)
        if self._pool is None or not self._pool.ready or self._kind != kind:
            self.close()
            with deferred_interrupts():
                self._pool, self._kind = WorkerPool(config.workers, with_sums), kind
                # Not a method of this object, which would keep it alive.
                self._close_pool = weakref.finalize(self, self._pool.close)
            try:
                self._pool.start()
            except BaseException:
                self.close()
                raise
        return self._pool


def through_memory(devices: Sequence[torch.device]) -> bool:
    """Return whether workers pass tensors through shared memory: those on CPUs do."""
    return not any(map(is_accelerator, devices))


def _here(stage: StageSource) -> StageSource:
    """Return what makes a stage, without what only this process can ask."""
    return stage.config if isinstance(stage, StageLeft) else stage


def _known(stages: Sequence[StageSource]) -> list[StageConfig]:
    """Return what stages of a model are made of, as far as that is known here."""
    known = (stage.known if isinstance(stage, StageLeft) else stage for stage in stages)
    return [stage for stage in known if isinstance(stage, StageConfig)]


def _working_folder() -> str | None:
    try:
        return os.getcwd()
    except OSError:  # it is gone
        return None


def over_processes(devices: Sequence[torch.device]) -> Runner:
    """Return what runs each worker in a process: torchrun's, if it started this one, or its own."""
    return torchrun.TorchrunRunner(devices) if torchrun.launched() else ProcessRunner()
