"""The user's interface to the engine: a model, a schedule, and training."""

import os
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from numbers import Real
from typing import Any, Literal, NoReturn, TypeVar, overload

from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from pipekit.engine.calls import CallLock, one_at_a_time, refusing_fields
from pipekit.engine.config import Loss
from pipekit.engine.observers.reporter import OnBatch
from pipekit.engine.options import Checkpoints, Execution, Updates, Watch, require_loss
from pipekit.engine.runs.assembly import Parts
from pipekit.engine.runs.run import Metric, Metrics, Run, results
from pipekit.engine.runs.runs import Runs
from pipekit.engine.updates.optimizer_state import NamedState
from pipekit.engine.updates.weight_versions import OptimizerFactory
from pipekit.partition.partition import sequence_of
from pipekit.plans import Plan
from pipekit.schedules import Schedule
from pipekit.units import listed, plural

M = TypeVar("M", bound=nn.Module)


class Pipeline:
    """Trains a sequential model by a schedule; each worker has one stage, or several.

    Args:
        model: layers in an ``nn.Sequential`` or a list.  Each layer passes on a tensor, or tuples,
            lists and dicts of tensors; tensors for layers far behind go straight to their stage
            (:mod:`pipekit.layers.skips`).  The model is copied, not changed.
        schedule: an endless one, e.g. ``schedules.two_bw(4, 8)``, trains as many batches as the
            data has; a finite one needs exactly its number of batches.
        balance: the number of layers of each stage; or a :class:`Plan`, which also says what each
            stage recomputes; or "auto", which gives each stage an equal share of operations.
        optimizer: makes an optimizer from a list of parameters, e.g.
            ``lambda p: torch.optim.SGD(p, lr=0.1)``; it is called once for every stage.
        loss: ``loss(output, target)`` of a microbatch gives one number; ``loss(output, batch)`` if
            batches are dicts.  A mean over rows (every loss whose ``reduction`` is not "sum") stays
            the mean over the whole batch; a mean over anything else, e.g. unpadded tokens, has to
            be a :class:`pipekit.MeanOver`.  Before training, a copy of it is asked whether it is
            the same for a batch and for its microbatches together.  It must not read what forwards
            or updates change in the model.
        transport: "threads" runs all workers in this process, "distributed" each in a process,
            started here (linked by shared memory, GPUs by NCCL) or by ``torchrun`` (gloo or NCCL).
        seed: of the layers' random numbers; by default the one last given to ``torch.manual_seed``
            when a call begins, or 0.  Each layer and microbatch has its own random stream, and
            results are equal to the bit on every transport; also for every balance if all workers
            have equally many operator threads (OMP_NUM_THREADS).  With None, layers draw from
            torch's default generator, and dropout equals the plain loop's to the bit; this takes
            one stage on one worker over "threads" without recomputation.
        updates: how weights are updated: clipping, loss scale, learning rates, stale weights.
        execution: where and how passes are computed: devices, recomputation, mixed precision.

    Raises:
        TypeError: ``model`` is neither layers nor made by :func:`pipekit.stages`, or a function
            cannot be called.
        ValueError: an argument does not fit the others; the message says what to change.
        ScheduleError: the schedule cannot be executed.
    """

    stays_here = True  # in copies of what holds it, a trainer whose method is the loss

    @refusing_fields
    def __init__(
        self,
        model: nn.Sequential | Sequence[nn.Module],
        schedule: Schedule,
        *,
        optimizer: OptimizerFactory,
        loss: Loss,
        balance: Sequence[int] | Plan | str = "auto",
        transport: str = "threads",
        seed: int | Literal["torch"] | None = "torch",
        updates: Updates = Updates(),
        execution: Execution = Execution(),
    ) -> None:
        self._calls = CallLock()
        given = schedule, optimizer, loss, balance, transport, seed, updates, execution
        parts = Parts(sequence_of(model), *given)
        self._runs, self._model, self._runner = Runs(parts), parts.model, parts.runner
        self._loss, self._updates = loss, updates
        self.stages, self.workers = schedule.stages, schedule.worker_count
        self._name = f"{schedule.title} over {transport}"

    def __repr__(self) -> str:
        layers = "" if self.balance is None else f" of {listed(self.balance)} layers"
        workers = plural(self.workers, "worker")
        return f"<Pipeline {self._name}: {workers}, {plural(self.stages, 'stage')}{layers}>"

    @property
    def balance(self) -> list[int] | None:
        """The number of layers of each stage; None for "auto" before the first batch."""
        return self._model.balance

    @refusing_fields
    @one_at_a_time
    def train(
        self,
        batches: Iterable[Any],
        *,
        steps: int | None = None,
        on_batch: OnBatch | None = None,
        checkpoints: str | os.PathLike[str] | Checkpoints | None = None,
        watch: Watch = Watch(),
    ) -> Run:
        """Train on every batch once; the pipeline is empty before and afterwards.

        A run ends early if ``on_batch`` returns True, by an error of ``on_batch``, the data or a
        forward, or by an interrupt (Ctrl-C, a notebook's stop button; a second one ends it at
        once).  All stages then finish the batches before that point, and training may go on;
        running statistics may have counted rows of the batch that failed.  Stages are left at
        different updates by an error in a backward or an optimizer, in a forward of a stage with
        several workers, and by every error under ``torchrun`` or between GPUs in processes.  Then
        only a checkpoint helps, or a state that was kept (:meth:`load_state_dict`).

        Args:
            batches: pairs (input, target), each [rows, ...], read one by one if they have a length.
                Or dicts, or tuples of another length: the model gets the entries that it takes (by
                the names of its arguments if :func:`pipekit.stages` recorded it with a dict, the
                first entries of a tuple; else see ``Execution.inputs``), the loss the whole batch,
                as ``loss(output, batch)``.  Tensors with as many rows as most of the model's are
                cut into microbatches; entries without rows (numbers, class weights) stay whole.
            steps: train at most on this many batches, read as they are needed; endless streams need
                it, or an ``on_batch`` that stops them.
            on_batch: is called in this thread with a :class:`BatchDone` (loss, learning rates, norm
                of the gradient) after each update of the last stage; under ``torchrun`` in the last
                stage's process.  If it returns True, no more batches are read.
            checkpoints: the folder of checkpoints, or a :class:`pipekit.Checkpoints` with it.  A
                run that ended early counts for :meth:`resume` as interrupted at that batch.
            watch: what is recorded and shown.

        Returns:
            The losses, the trace and the measurements.

        Raises:
            ValueError: the schedule does not fit the batches, a batch cannot be split, or the
                folder holds checkpoints of another training, or another training is writing there.
            OSError: a checkpoint cannot be written; before the first batch, if that is known then.
            TypeError: an observer cannot watch workers in other processes.
            Exception: the first error that any worker raised; see above for the state that is left.
        """
        return self._runs.train(batches, steps, on_batch, checkpoints, watch)

    @one_at_a_time
    def resume(self, checkpoints: str | os.PathLike[str]) -> int:
        """Continue from the newest complete checkpoint in a folder, if there is one.

        A checkpoint holds tensors and numbers, never code: build the pipeline as before, and call
        this before training.  The next ``train`` call is then the interrupted one and skips the
        batches that were trained on, maybe all.  Weights, optimizer, losses and random numbers,
        also of a ``DataLoader`` that shuffles, are equal to the bit to an uninterrupted run's, on
        every transport.  With another schedule or other stages, training continues from the newest
        weights and the parameters' optimizer state with an empty pipeline.

        Args:
            checkpoints: the folder that ``train`` was given.

        Returns:
            How many earlier ``train`` calls to skip, 0 if there is no checkpoint, so that a script
            can always begin ``for epoch in range(pipeline.resume(folder), epochs)``.

        Raises:
            ValueError: the checkpoint is of another model or another kind of optimizer.

        Warns:
            UserWarning: a damaged file is named, and an earlier checkpoint is used.
        """
        return self._runs.resume(checkpoints)

    @overload
    def evaluate(self, batches: Iterable[Any], metric: Metric | None = None) -> float: ...

    @overload
    def evaluate(
        self, batches: Iterable[Any], metric: Mapping[str, Metric]
    ) -> dict[str, float]: ...

    @one_at_a_time
    def evaluate(
        self, batches: Iterable[Any], metric: Metric | Mapping[str, Metric] | None = None
    ) -> float | dict[str, float]:
        """Return the mean over all rows of ``metric(output, target)``, by default the loss.

        The layers are in evaluation mode; the batches stream through the pipeline.

        Args:
            batches: as in :meth:`train`.
            metric: gives a number for the rows of a batch; or several metrics by name, e.g.
                ``{"loss": loss, "accuracy": accuracy}``, whose means are then returned by name.

        Raises:
            ValueError: there are no batches, or one cannot be read.
        """
        named = metric if isinstance(metric, Mapping) else {"": metric or self._loss}
        require_loss(**{name or "metric": each for name, each in named.items()})
        metrics = Metrics(dict(named))
        means = metrics.means(self._runs.infer(batches, metrics))
        return means if isinstance(metric, Mapping) else means[""]

    @one_at_a_time
    def predict(self, inputs: Iterable[Any]) -> list[Any]:
        """Return the model's outputs in evaluation mode, on the CPU: one for each input.

        Args:
            inputs: each [rows, ...], a tensor or a structure of tensors, without a target; or a
                dict with more than the model takes, as in :meth:`train`.

        Raises:
            ValueError: there are no inputs, or one cannot be read.
        """
        return results(self._runs.infer(inputs, lambda output, _: output, labelled=False))

    @one_at_a_time
    def state_dict(self) -> "OrderedDict[str, Tensor]":
        """Return the newest weights and buffers under the names of the unsplit model.

        They are copies on the CPU, of extra states of modules (``get_extra_state()``) too; a
        transformers model saves them by ``model.save_pretrained(folder, state_dict=...)``.
        """
        self._runs.read()
        gathered = self._runner.gather(self._model.state())
        state = OrderedDict((name, gathered[name]) for name in self._model.names)
        if self._model.metadata is not None:
            state._metadata = self._model.metadata  # type: ignore[attr-defined]
        return state

    def load_into(self, model: M) -> M:
        """Load the newest weights and buffers into a model, e.g. the unsplit one; return it."""
        model.load_state_dict(self.state_dict())
        return model

    @one_at_a_time
    def load_state_dict(self, state: Mapping[str, Any], strict: bool = True) -> None:
        """Load weights and buffers by their names in the unsplit model, between runs.

        Optimizers keep their state, but begin anew after a run that left its stages at different
        updates.

        Args:
            state: as :meth:`state_dict` or the unsplit model gives it.
            strict: whether every name has to be there, and no other.

        Raises:
            TypeError: it is not a dict of tensors; nothing is changed by any of these errors.
            ValueError: names or shapes differ.
            RuntimeError: the next run goes on from a checkpoint, with its weights.
        """
        self._runs.load(state, strict)

    @one_at_a_time
    def requires_grad_(self, names: str | Iterable[str], flag: bool = True) -> None:
        """Train weights from the next run on, or freeze them; optimizers and schedulers begin anew.

        After :meth:`resume` they go on as the checkpoint has them.

        Args:
            names: of parameters, or of modules for all parameters in them, in the unsplit model.
            flag: whether they are trained.

        Raises:
            ValueError: the model has no such name; nothing is changed then.
        """
        self._runs.require_gradients([names] if isinstance(names, str) else names, flag)

    @one_at_a_time
    def each_optimizer(self, function: Callable[[Optimizer], object]) -> None:
        """Call a function with the optimizer of every stage, now or once the first run makes it.

        Its changes (options of groups, state) stay.
        """
        self._runs.read()
        self._model.edit(lambda optimizer, _: function(optimizer))

    def set_learning_rate(self, rate: float) -> None:
        """Set the learning rate of all groups of all stages, from the next run on.

        Raises:
            ValueError: it is not a number of at least 0.
        """
        if not (isinstance(rate, Real | Tensor) and rate >= 0):
            raise ValueError(f"a learning rate must be a number of at least 0, not {rate!r}")

        def set_rate(optimizer: Optimizer) -> None:
            for group in optimizer.param_groups:
                group["lr"] = rate

        self.each_optimizer(set_rate)

    @one_at_a_time
    def step_lr(self, metric: float | None = None) -> None:
        """Step every stage's learning-rate scheduler, e.g. once an epoch.

        Args:
            metric: for a scheduler such as ``ReduceLROnPlateau``, or None.

        Raises:
            ValueError: updates step the schedulers (``lr_step``), or there are none.
        """
        if self._updates.lr_scheduler is None or self._updates.lr_step != "call":
            raise ValueError(
                "build the pipeline with updates=Updates(lr_scheduler=..., lr_step='call')"
            )
        given = () if metric is None else (metric,)

        def step(_: Optimizer, scheduler: LRScheduler | None) -> None:
            with warnings.catch_warnings():  # torch does not know that updates went before
                warnings.filterwarnings("ignore", "Detected call of `lr_scheduler.step")
                if scheduler is not None:
                    scheduler.step(*given)

        self._runs.read()
        self._model.edit(step)

    @one_at_a_time
    def optimizer_state(self) -> NamedState:
        """Return the optimizers' state of each parameter, after a run.

        Returns:
            By the parameter's name in the unsplit model: its ``state``, and the ``options`` of its
            group, the learning rate among them.
        """
        self._runs.read()
        return self._runner.gather(self._model.optimizer_state())

    @one_at_a_time
    def close(self) -> None:
        """End the worker processes that wait for the next call, which then starts new ones."""
        self._runner.close()

    def __reduce__(self) -> NoReturn:
        """Raise TypeError: workers cannot be copied or saved, and weights can."""
        raise TypeError(
            "a Pipeline has workers and cannot be copied or pickled: save pipeline.state_dict(), "
            "or checkpoints; for AveragedModel, call average = AveragedModel(model) and after "
            "each epoch average.update_parameters(pipeline.load_into(model))"
        )
