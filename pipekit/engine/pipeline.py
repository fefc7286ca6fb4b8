"""The user's door to the engine: a model, a schedule, and training."""

import copy
import os
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial, reduce
from itertools import chain, islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from pipekit import skips
from pipekit.clusters import Cluster
from pipekit.devices import resolve_for_workers
from pipekit.engine import arguments
from pipekit.engine.batches import Batch, read_batch, read_rest, split
from pipekit.engine.checkpoints.progress import Course
from pipekit.engine.checkpoints.writer import Resumption, Saving
from pipekit.engine.config import Job
from pipekit.engine.execution.passes import Loss
from pipekit.engine.execution.stage import StageSpec
from pipekit.engine.execution.worker import Report
from pipekit.engine.observers.loss_bar import LossBar
from pipekit.engine.run import Run
from pipekit.engine.transports import by_name as transports
from pipekit.engine.updates.ties import find_ties, parameter_numbers, separated
from pipekit.engine.updates.weight_versions import LRSchedulerFactory, OptimizerFactory
from pipekit.layers.autocast import DTYPES
from pipekit.loss_scale import LossScale
from pipekit.partition.balance import balance_by_cost
from pipekit.partition.cut import cut
from pipekit.partition.layer_costs import layer_costs
from pipekit.partition.probe import probe
from pipekit.plans import Plan, Recompute
from pipekit.schedules import (
    Schedule,
    ScheduleError,
    check,
    inference,
    loss_versions,
    lower,
    steps_after,
    sums,
)
from pipekit.trees import Tree


class Pipeline:
    """Trains a sequential model by a schedule, whose workers have a stage each, or several.

    Args:
        model: any layers in an ``nn.Sequential``; each passes on a tensor, or tuples, lists and
            dicts of tensors, and may leave tensors for layers far behind it (:mod:`pipekit.skips`),
            which go straight to their stage.  It is copied, not changed.
        schedule: a :class:`Schedule` that fits the batches exactly, or a function from the number
            of batches to one, e.g. ``lambda n: schedules.two_bw(4, 8, n)``.
        balance: how many layers each stage gets; or a :class:`Plan`, which also says what each
            stage recomputes; or "auto": an equal share of parameters and operations.
        optimizer: makes an optimizer from a list of parameters, e.g.
            ``lambda p: torch.optim.SGD(p, lr=0.1)``; called once for every stage.
        loss: ``loss(output, target)`` of a microbatch, one number.  A mean over rows (anything
            whose ``reduction`` is not "sum") stays the mean over the whole batch.
        transport: "threads", all workers in this process; or "distributed", one process each,
            started here (linked by shared memory, GPUs by NCCL) or by ``torchrun`` (by gloo, NCCL).
        devices: one for each worker; by default the GPUs in turn, or the CPU.
        recompute: "never", unless a plan says otherwise; "always": keep only the input of a stage
            for the backward and run its forward again; "except_last": likewise but for the last
            microbatch of each batch (torchgpipe, section 2.1).  Or a list, one for each stage.
        seed: of the layers' random numbers; with it, results are equal to the bit whatever the
            transport and, if workers have equally many operator threads (OMP_NUM_THREADS), whatever
            the balance.
        autocast: ``torch.bfloat16`` or ``torch.float16``: mixed precision (PipeDream-2BW, section
            5.1).  Forwards and the loss compute in it where that is safe (:class:`torch.autocast`),
            and activations travel as they come; weights, their gradients and the optimizer's state
            keep their types.
        loss_scale: a number by which losses are multiplied, and gradients divided at their update,
            so that small ones survive in float16; "dynamic": it follows the rule of
            ``torch.amp.GradScaler``; or a :class:`pipekit.LossScale`, that rule with other numbers.
            An update whose gradient is not finite on any stage is then skipped on all of them:
            neither optimizer nor scheduler takes a step.  1 skips without scaling.
        clip_norm: largest norm of an update's gradient over all stages, or None.
        lr_scheduler: makes a learning-rate scheduler from an optimizer; stepped after each update.
        cluster: links to slow the messages between workers down to; over "threads" only.

    Raises:
        TypeError: ``model`` is not an ``nn.Sequential``, or a callable is not callable.
        ValueError: an argument does not fit the others; the message says what to change.
        ScheduleError: the schedule cannot be executed.
    """

    def __init__(
        self,
        model: nn.Sequential,
        schedule: Schedule | Callable[[int], Schedule],
        *,
        balance: Sequence[int] | Plan | str = "auto",
        optimizer: OptimizerFactory,
        loss: Loss,
        transport: str = "threads",
        devices: Sequence[torch.device | str] | None = None,
        recompute: Recompute | Sequence[Recompute] | None = None,
        seed: int = 0,
        autocast: torch.dtype | None = None,
        loss_scale: float | str | LossScale | None = None,
        clip_norm: float | None = None,
        lr_scheduler: LRSchedulerFactory | None = None,
        cluster: Cluster | None = None,
    ) -> None:
        arguments.require_model(model)
        skips.require_matched(list(model))
        arguments.require_choice("transport", transport, transports.NAMES)
        arguments.require_callable(optimizer=optimizer, loss=loss)
        self._optimizer, self._lr_scheduler, self._loss = optimizer, lr_scheduler, loss
        self._seed, self._clip_norm, self._cluster = seed, clip_norm, cluster
        arguments.require_choice("autocast", autocast, DTYPES)
        self._autocast, self._loss_scale = autocast, LossScale.of(loss_scale)
        self._schedule = schedule
        plan, example = balance, schedule(1) if callable(schedule) else schedule
        if isinstance(balance, Plan):
            recompute = recompute or [stage.recompute for stage in balance.stages]
            balance = balance.balance
        self._check(example)
        if isinstance(plan, Plan):
            arguments.require_replicas(plan, example)
        self.stages, self.workers = example.stages, len(example.workers)
        arguments.require_slowable(cluster, transport, self.workers)
        self._homes = [workers[0] for workers in example.stage_workers]
        arguments.require_balance(balance, model, self.stages)
        self._recompute = arguments.resolve_recompute(recompute or "never", example)
        self.balance = None if isinstance(balance, str) else list(balance)
        self._devices = resolve_for_workers(devices, self.workers)
        self._run_workers = transports.runner(transport)
        self._model = copy.deepcopy(model)
        self._keys = list(model.state_dict())
        self._specs: list[StageSpec] = []
        self._skips: list[skips.Skip] = []  # between stages
        self._ties = find_ties(cut(model, self.balance)) if self.balance else ()
        self._require_joint(example)
        dtypes = [p.dtype for p in model.parameters() if p.requires_grad]
        self._trained_parameters = len(dtypes)
        self._norm_dtype = reduce(torch.promote_types, dtypes) if dtypes else torch.float32
        self._course = Course(
            partial(transports.from_first, run=self._run_workers, devices=self._devices)
        )
        self._failed = False

    def train(
        self,
        batches: Iterable[tuple[Any, Any]],
        *,
        trace: bool = True,
        memory: bool = False,
        progress: bool = False,
        checkpoints: str | os.PathLike[str] | None = None,
        every: int | None = None,
    ) -> Run:
        """Train on every batch once; the pipeline is empty again when this returns.

        Args:
            batches: pairs (input, target), each [rows, ...]; read one by one if it has a length.
            trace: whether to record what every worker does.
            memory: whether to follow what lies in every worker's memory, for
                :func:`pipekit.measure_memory`; it takes time.
            progress: whether to show a bar with the loss.
            checkpoints: a folder where every worker writes its part of a checkpoint, without
                waiting for the others or for the pipeline to drain (PipeDream, section 4); for
                workers on several machines, one that they share.  The last two complete ones stay.
            every: batches from one checkpoint to the next (rounded up to where all stages have
                made whole updates); by default there is one at the end.

        Returns:
            The losses, the trace and what was measured.

        Raises:
            ValueError: the schedule does not fit the batches, a batch cannot be split, or the
                folder holds checkpoints of another training.
            Exception: the first that any worker raised; the pipeline cannot be used after it.
        """
        arguments.require_every(every, checkpoints)
        folder = None if checkpoints is None else self._course.claim(checkpoints)
        self._course.begin()
        batches = arguments.sized(batches)
        start = self._course.start(len(batches), self._schedule_for, self.balance)
        begin = time.perf_counter()
        ready = self._ready(start.schedule, islice(batches, start.offset, len(batches)))
        reports = []
        if start.is_end:
            deque(ready, maxlen=0)  # whoever makes them may draw random numbers
        else:
            assert self.balance is not None
            saving = self._course.saving(folder, every, start, self.balance) if folder else None
            reports = self._run(
                start.schedule,
                ready,
                self._loss,
                first_microbatch=start.microbatches,
                saving=saving,
                resumption=start.resumption,
                training=True,
                trace=trace,
                memory=memory,
                progress=progress,
            )
        self._course.end(start, len(batches))
        wall = time.perf_counter() - begin
        return Run.of(start.schedule, reports, wall, self._seed, start.losses)

    def resume(self, checkpoints: str | os.PathLike[str]) -> int:
        """Go on from the newest complete checkpoint in a folder, if there is one.

        A checkpoint holds tensors and numbers only, never code: build the pipeline as the one that
        wrote it was built, and call this before training.  The next ``train`` call is then the one
        that was interrupted: it passes over the batches that had been trained on, and its weights,
        optimizer, losses and random numbers, those of a ``DataLoader`` that shuffles included, are
        equal to the bit to an uninterrupted run's, on any transport.  If that run was at its end,
        there is nothing left for the call to train on.

        With another schedule, or other stages, training goes on from the newest weights and the
        parameters' optimizer state, with an empty pipeline: for methods that flush it after every
        batch this is the same.

        Args:
            checkpoints: the folder that ``train`` was given.

        Returns:
            How many earlier ``train`` calls to leave out, 0 if there is no checkpoint, so that a
            script may always begin ``for epoch in range(pipeline.resume(folder), epochs)``.

        Raises:
            ValueError: the checkpoint is of another model or another kind of optimizer.

        Warns:
            UserWarning: naming a damaged file, for which an earlier checkpoint is used.
        """
        found = self._course.resume(Path(checkpoints).absolute())
        if found is None:
            return 0
        found.load_into(self._modules)
        for spec in self._specs:
            spec.state = found.state_for(spec)
        if self.balance is None and len(found.stages) == self.stages:
            self.balance = found.about["balance"]
        self._failed = False
        return found.position.runs

    def evaluate(
        self, batches: Iterable[tuple[Any, Any]], metric: Callable[[Any, Any], Any] | None = None
    ) -> float:
        """Return the mean over all rows of ``metric(output, target)``, by default the loss.

        The layers are in evaluation mode; the batches stream through the pipeline.

        Args:
            batches: pairs (input, target), each [rows, ...].
            metric: gives a number for the rows of a batch.

        Raises:
            ValueError: there are no batches, or one cannot be read.
        """
        batches = arguments.sized(batches)
        schedule = inference(self.stages, len(batches), self._homes, self.workers)
        ready = self._ready(schedule, iter(batches))
        reports = self._run(
            schedule,
            ready,
            metric or self._loss,
            first_microbatch=self._course.position.microbatches,
            training=False,
        )
        rows = max((report.rows for report in reports), key=len)  # not all workers see all data
        values = [value for report in reports for _, value in sorted(report.losses)]
        weights = rows if _is_mean(metric or self._loss) else [1] * len(rows)
        return sum(v * w for v, w in zip(values, weights, strict=True)) / sum(rows)

    def state_dict(self) -> "OrderedDict[str, Tensor]":
        """Return the newest weights and buffers under the names of the unsplit model."""
        self._require_sound()
        here = chain.from_iterable(module.state_dict().items() for module in self._modules)
        state = {name: tensor.detach().to("cpu", copy=True) for name, tensor in here}
        gathered = transports.gather(state, self._run_workers)
        return OrderedDict((name, gathered[name]) for name in self._keys)

    @property
    def _modules(self) -> list[nn.Sequential]:
        """The layers that are here, under their names in the unsplit model."""
        return [spec.layers for spec in self._specs] or [self._model]

    def _ready(self, schedule: Schedule, raw: Iterator[Any]) -> Iterator[Batch]:
        """Return the batches, checked; the first one serves to build the stages, if need be."""
        self._require_sound()
        parts = [len(batch) for batch in schedule.batches]
        first = read_batch(next(raw), parts[0], 0)
        if not self._specs:
            self._build(split(first.input, first.parts)[0])
        return chain([first], read_rest(raw, parts[1:]))

    def _run(
        self,
        schedule: Schedule,
        batches: Iterator[Batch],
        loss: Loss,
        *,
        training: bool,
        first_microbatch: int,
        trace: bool = False,
        memory: bool = False,
        progress: bool = False,
        saving: Saving | None = None,
        resumption: Resumption | None = None,
    ) -> list[Report]:
        """Run a schedule over batches; the stages' specs are then those after the run."""
        if training:
            self._require_joint(schedule)
        lowered = lower(schedule, [(skip.source, skip.destination) for skip in self._skips])
        if resumption:
            lowered = steps_after(lowered, resumption.boundary)
        job = Job(
            workers=len(schedule.workers),
            members=schedule.stage_workers,
            sums=sums(schedule),
            loss=loss,
            mean_loss=_is_mean(loss),
            training=training,
            first_microbatch=first_microbatch,
            clip_norm=self._clip_norm,
            parameters=self._trained_parameters,
            norm_dtype=self._norm_dtype,
            loss_versions=loss_versions(schedule) if self._loss_scale else (),
            ties=self._ties,
            autocast=self._autocast,
            trace=trace,
            memory=memory,
            cluster=self._cluster,
            saving=saving,
            resumption=resumption,
        )
        done = resumption.boundary.batches if resumption else 0
        specs = [self._specs_for(worker, schedule) for worker in range(len(lowered))]
        self._failed = training
        with LossBar(schedule.batches, progress, done) as bar:
            reports = self._run_workers(
                lowered,
                specs,
                job,
                batches,
                self._devices,
                bar.add if progress else None,
            )
        self._failed = False
        if training:
            # The workers of a stage have the same weights; of their buffers the first one's stay.
            kept = {spec.index: spec for report in reversed(reports) for spec in report.specs}
            self._specs = [kept[index] for index in sorted(kept)]
        return reports

    def _specs_for(self, worker: int, schedule: Schedule) -> list[StageSpec]:
        """Return the stages of a worker; those that another one has too as copies."""
        return [
            spec if worker == schedule.stage_workers[spec.index][0] else copy.deepcopy(spec)
            for spec in self._specs
            if worker in schedule.stage_workers[spec.index]
        ]

    def _build(self, sample: Tree) -> None:
        """Cut the model into stages; ``sample`` is tried on it first."""
        tried = probe(self._model, sample, self._autocast)
        if self.balance is None:
            balance = balance_by_cost(layer_costs(self._model, tried.flops), self.stages)
            arguments.require_own_buffers(self._model, balance)
            self.balance = balance
        first = 0
        self._skips = skips.between(skips.links(self._model), self.balance)
        stages = cut(self._model, self.balance)
        self._ties, numbers = find_ties(stages), parameter_numbers(stages)
        specs = []
        for index, stage in enumerate(separated(stages)):
            here = range(first, first + len(stage))
            specs.append(
                StageSpec(
                    index=index,
                    layers=stage,
                    first_layer=first,
                    random_layers=tried.random_layers & set(here),
                    edits_input=first in tried.edited_inputs,
                    differentiates_input=index > 0,
                    optimizer=self._optimizer,
                    lr_scheduler=self._lr_scheduler,
                    seed=self._seed,
                    recompute=self._recompute[index],
                    numbers=numbers[index],
                    autocast=self._autocast,
                    loss_scale=self._loss_scale,
                    pops={s.name: n for n, s in enumerate(self._skips) if s.destination == index},
                    stashes={s.name: n for n, s in enumerate(self._skips) if s.source == index},
                )
            )
            first += len(stage)
        if self._course.interrupted:
            for spec in specs:
                spec.state = self._course.interrupted.state_for(spec)
        self._specs, self._model = specs, nn.Sequential()  # the stages own the layers now

    def _schedule_for(self, batches: int) -> Schedule:
        """Return the checked schedule for a number of batches."""
        if not isinstance(self._schedule, Schedule):
            schedule = self._schedule(batches)
            self._check(schedule)
        else:
            schedule = self._schedule
        if schedule.stages != self.stages or len(schedule.workers) != self.workers:
            raise ScheduleError(
                f"the schedule for {batches} batches has {schedule.stages} stages on "
                f"{len(schedule.workers)} workers; it had {self.stages} on {self.workers}"
            )
        if len(schedule.batches) != batches:
            raise ScheduleError(
                f"the schedule is for {len(schedule.batches)} batches and there are {batches}: "
                f"pass a function, e.g. lambda n: schedules.flush(stages, microbatches, n)"
            )
        return schedule

    def _check(self, schedule: Schedule) -> None:
        if not isinstance(schedule, Schedule):
            raise TypeError(f"schedule must be a Schedule, not {type(schedule).__name__}")
        if not schedule.trains:
            raise ScheduleError("the schedule has no backward: it cannot train")
        check(schedule)
        arguments.require_one_order_of_sums(schedule)

    def _require_joint(self, schedule: Schedule) -> None:
        """Raise ScheduleError if stages have to update together and cannot."""
        reasons = {
            "clip_norm": self._clip_norm is not None,
            "loss_scale": self._loss_scale is not None,
            "weights that stages share": bool(self._ties),
        }
        for reason in (reason for reason, given in reasons.items() if given):
            arguments.require_joint_updates(schedule, reason)

    def _require_sound(self) -> None:
        if self._failed:
            raise RuntimeError(
                "the last run did not end, and left its stages at different updates: build the "
                "pipeline again, or resume() from a checkpoint"
            )


def _is_mean(loss: Loss) -> bool:
    """Return whether a loss is a mean over rows: all but those that say that they sum."""
    return getattr(loss, "reduction", "mean") != "sum"
