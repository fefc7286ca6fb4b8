"""The user's door to the engine: a model, a schedule, and training."""

import copy
import os
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, overload

import torch
from torch import Tensor, nn

from pipekit import skips
from pipekit.choices import require_choice
from pipekit.clusters import Cluster
from pipekit.devices import resolve_for_workers
from pipekit.engine import arguments
from pipekit.engine.config import Loss
from pipekit.engine.execution.stage import StageConfig
from pipekit.engine.inference import Metric, Metrics, Unlabelled, output_alone, results
from pipekit.engine.model_stages import ModelStages
from pipekit.engine.observers.loss_bar import BatchDone
from pipekit.engine.observers.observer import Watchers
from pipekit.engine.run import Run
from pipekit.engine.runs import Runs
from pipekit.engine.tables import Tables
from pipekit.engine.transports import by_name as transports
from pipekit.engine.updates.weight_versions import LRSchedulerFactory, OptimizerFactory
from pipekit.engine.workers import Workers
from pipekit.layers.autocast import DTYPES
from pipekit.loss_scale import LossScale
from pipekit.partition.checks import require_balance
from pipekit.partition.partition import sequence_of
from pipekit.partition.reordered import in_plan_order
from pipekit.plans import Plan, Recompute
from pipekit.schedules import Schedule


class Pipeline:
    """Trains a sequential model by a schedule, whose workers have a stage each, or several.

    Args:
        model: any layers in an ``nn.Sequential`` or a list; each passes on a tensor, or tuples,
            lists and dicts of tensors, and may leave tensors for layers far behind it
            (:mod:`pipekit.skips`), which go straight to their stage.  It is copied, not changed.
        schedule: a :class:`Schedule` that fits the batches exactly, or a function from the number
            of batches to one, e.g. ``lambda n: schedules.two_bw(4, 8, n)``.
        balance: how many layers each stage gets; or a :class:`Plan`, which also says what each
            stage recomputes; or "auto": an equal share of parameters and operations.
        optimizer: makes an optimizer from a list of parameters, e.g.
            ``lambda p: torch.optim.SGD(p, lr=0.1)``; called once for every stage.
        loss: ``loss(output, target)`` of a microbatch, one number.  A mean over rows (anything
            whose ``reduction`` is not "sum") stays the mean over the whole batch; one over other
            things, say tokens that are no padding, does as a :class:`pipekit.MeanOver`.
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
        validate: when stages agree on clipping and skipping an update: "first", before it, which
            is a global stop; or "later": each makes it, goes on with forwards, and goes back if it
            was wrong (Zero Bubble Pipeline Parallelism, section 4).  Results are equal to the bit;
            it takes a copy of the weights, their gradients and the optimizer's state.
        lr_scheduler: makes a learning-rate scheduler from an optimizer; stepped after each update.
        cluster: links to slow the messages between workers down to; over "threads" only.
        timeout: seconds after which a run fails in which no worker (under ``torchrun``: one) gets
            further; None: never.  After 30 s it is said anyway who is at what and waits for what.

    Raises:
        TypeError: ``model`` is not an ``nn.Sequential``, or a callable is not callable.
        ValueError: an argument does not fit the others; the message says what to change.
        ScheduleError: the schedule cannot be executed.
    """

    def __init__(
        self,
        model: nn.Sequential | Sequence[nn.Module],
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
        validate: str = "first",
        lr_scheduler: LRSchedulerFactory | None = None,
        cluster: Cluster | None = None,
        timeout: float | None = None,
    ) -> None:
        layers = sequence_of(model)
        skips.require_matched(list(layers))
        require_choice("transport", transport, transports.NAMES)
        arguments.require_callable(optimizer=optimizer, loss=loss)
        require_choice("autocast", autocast, DTYPES)
        require_choice("validate", validate, arguments.VALIDATE)
        arguments.require_timeout(timeout)
        scale = LossScale.of(loss_scale)
        tables = Tables(schedule)
        example = tables.example
        self.stages, self.workers = example.stages, len(example.workers)
        if isinstance(balance, Plan):
            layers, balance = in_plan_order(layers, balance)
            arguments.require_replicas(balance, example)
            recompute = recompute or [stage.recompute for stage in balance.stages]
            balance = balance.balance
        arguments.require_slowable(cluster, transport, self.workers)
        require_balance(balance, layers, self.stages)
        recomputed = arguments.resolve_recompute(recompute or "never", example)
        configure = partial(
            StageConfig.of,
            seed=seed,
            autocast=autocast,
            optimizer=optimizer,
            lr_scheduler=lr_scheduler,
            recompute=recomputed,
            loss_scale=scale,
        )
        self._model = ModelStages(copy.deepcopy(layers), self.stages, balance, configure)
        self._loss = loss
        where = resolve_for_workers(devices, self.workers)
        arguments.require_repeatable(validate, transport, where)
        self._runner = transports.runner(transport, where)
        workers = Workers(
            tables,
            self._model,
            self._runner,
            where,
            loss=loss,
            autocast=autocast,
            clip_norm=clip_norm,
            is_scaled=scale is not None,
            validate_later=validate == "later",
            cluster=cluster,
            timeout=timeout,
        )
        self._runs = Runs(tables, self._model, workers, self._runner.agree, transport, seed)

    @property
    def balance(self) -> list[int] | None:
        """How many layers each stage has; None until a batch has told, if it is "auto"."""
        return self._model.balance

    def train(
        self,
        batches: Iterable[tuple[Any, Any]],
        *,
        trace: bool = True,
        memory: bool = False,
        progress: bool = False,
        on_batch: Callable[[BatchDone], object] | None = None,
        checkpoints: str | os.PathLike[str] | None = None,
        every: int | None = None,
        keep: int = 2,
        observers: Watchers = (),
    ) -> Run:
        """Train on every batch once; the pipeline is empty again when this returns.

        Args:
            batches: pairs (input, target), each [rows, ...]; read one by one if it has a length.
            trace: whether to record what every worker does.
            memory: whether to follow what lies in every worker's memory, for
                :func:`pipekit.measure_memory`; it takes time.
            progress: whether to show a bar with the loss.
            on_batch: called in this thread with each :class:`BatchDone`; under ``torchrun`` where
                the last stage is.
            checkpoints: a folder where every worker writes its part of a checkpoint, without
                waiting for the others or for the pipeline to drain (PipeDream, section 4); for
                workers on several machines, one that they share.
            every: batches from one checkpoint to the next (rounded up to where all stages have
                made whole updates); by default there is one at the end.
            keep: how many complete checkpoints stay, the newest ones; of older ones the last whose
                weights and loss are finite stays as well.
            observers: watch the workers (:class:`pipekit.engine.Observer`): over "threads" objects
                that all workers call; over either transport functions from a worker's number to its
                observer, which is made where the worker runs.

        Returns:
            The losses, the trace and what was measured.

        Raises:
            ValueError: the schedule does not fit the batches, a batch cannot be split, or the
                folder holds checkpoints of another training, or one is writing there.
            OSError: a checkpoint cannot be written; before the first batch, if that is known then.
            TypeError: an observer cannot watch workers in other processes.
            Exception: the first that any worker raised; the pipeline cannot be used after it.
        """
        return self._runs.train(
            batches,
            checkpoints=checkpoints,
            every=every,
            keep=keep,
            progress=progress,
            on_batch=on_batch,
            trace=trace,
            memory=memory,
            observers=observers,
        )

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
        return self._runs.resume(checkpoints)

    @overload
    def evaluate(
        self,
        batches: Iterable[tuple[Any, Any]],
        metric: Metric | None = None,
        observers: Watchers = (),
    ) -> float: ...

    @overload
    def evaluate(
        self,
        batches: Iterable[tuple[Any, Any]],
        metric: Mapping[str, Metric],
        observers: Watchers = (),
    ) -> dict[str, float]: ...

    def evaluate(
        self,
        batches: Iterable[tuple[Any, Any]],
        metric: Metric | Mapping[str, Metric] | None = None,
        observers: Watchers = (),
    ) -> float | dict[str, float]:
        """Return the mean over all rows of ``metric(output, target)``, by default the loss.

        The layers are in evaluation mode; the batches stream through the pipeline.

        Args:
            batches: pairs (input, target), each [rows, ...].
            metric: gives a number for the rows of a batch; or several by name, e.g.
                ``{"loss": loss, "accuracy": accuracy}``, whose means are then returned by name.
            observers: watch the workers, as those of :meth:`train` do.

        Raises:
            ValueError: there are no batches, or one cannot be read.
        """
        named = metric if isinstance(metric, Mapping) else {"": metric or self._loss}
        metrics = Metrics(dict(named))
        means = metrics.means(self._runs.infer(arguments.sized(batches), metrics, observers))
        return means if isinstance(metric, Mapping) else means[""]

    def predict(self, inputs: Iterable[Any], observers: Watchers = ()) -> list[Any]:
        """Return the model's outputs in evaluation mode, on the CPU: one for each input.

        Args:
            inputs: each [rows, ...], a tensor or a structure of tensors, without a target.
            observers: watch the workers, as those of :meth:`train` do.

        Raises:
            ValueError: there are no inputs, or one cannot be read.
        """
        batches = Unlabelled(arguments.sized(inputs))
        return results(self._runs.infer(batches, output_alone, observers))

    def state_dict(self) -> "OrderedDict[str, Tensor]":
        """Return the newest weights and buffers under the names of the unsplit model."""
        self._runs.require_sound()
        gathered = self._runner.gather(self._model.state())
        return OrderedDict((name, gathered[name]) for name in self._model.names)

    def close(self) -> None:
        """End the worker processes that are kept for the next call, which then starts others."""
        self._runner.close()
