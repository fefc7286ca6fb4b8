"""Options of a training beside its model and schedule: four values, passed on whole."""

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from numbers import Integral, Real
from typing import Any, get_args

import torch
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from pipekit.choices import require_choice
from pipekit.clusters import Cluster
from pipekit.engine.observers.observer import Watchers
from pipekit.engine.updates.optimizer_state import Groups
from pipekit.engine.updates.weight_versions import LRSchedulerFactory
from pipekit.layers.pass_state import DTYPES
from pipekit.losses.losses import LossScale
from pipekit.plans import Recompute
from pipekit.staleness import Mitigation, named

Inputs = str | Sequence[str] | Callable[[Any], Any] | None
"""Which entries of a batch the model takes: one name or several, or what returns the input."""


@dataclass(frozen=True, kw_only=True)
class Updates:
    """How weights are updated.

    Attributes:
        clip_norm: the largest norm of an update's gradient over all stages, or None; ``math.inf``
            only computes the norm, for ``on_batch``.
        loss_scale: a number that multiplies losses, and divides gradients at their update, so that
            small ones survive in float16; "dynamic" follows the rule of ``torch.amp.GradScaler``; a
            :class:`pipekit.LossScale` is that rule with other numbers.  Optimizers and schedulers
            skip an update whose gradient is not finite on any stage, also with 1.
        groups: ``groups(name, parameter)`` gives the optimizer's options for a parameter, by its
            name in the model: ``lambda name, p: {"weight_decay": 0.0} if p.dim() < 2 else {}``.
            Parameters with the same options form a group; ``optimizer`` gets a list of groups.
        lr_scheduler: makes a learning-rate scheduler from an optimizer.
        lr_step: steps the scheduler after each "update", or by a "call" of
            :meth:`pipekit.Pipeline.step_lr`.
        mitigation: the remedy for stale weights, a :class:`pipekit.staleness.Mitigation` or its
            name, perhaps with arguments: "spectrain", "pipeoptim", "pipemare:anneal=500",
            "gap-aware", "error-feedback".  Each fits some schedules only; predicted weights take
            their own slots.
        finite: whether a loss that is not finite ends the run, with a FloatingPointError, before
            its batch changes any weights.  On GPUs the host then waits for each loss.

    Raises:
        TypeError: a function cannot be called, or a mitigation is neither a rule nor a name.
        ValueError: a value is none of those above.
    """

    clip_norm: float | None = None
    loss_scale: float | str | LossScale | None = None
    groups: Groups | None = None
    lr_scheduler: LRSchedulerFactory | None = None
    lr_step: str = "update"
    mitigation: Mitigation | str | None = None
    finite: bool = False

    def __post_init__(self) -> None:
        if self.groups is not None:
            require_callable(groups=self.groups)
        if self.lr_scheduler is not None:
            require_callable(lr_scheduler=self.lr_scheduler)
        norm = self.clip_norm
        if norm is not None and not (isinstance(norm, Real) and norm >= 0):
            raise ValueError(f"clip_norm must be at least 0, or None, not {norm!r}")
        require_choice("lr_step", self.lr_step, ("update", "call"))
        LossScale.of(self.loss_scale)
        if self.rule is not None and not isinstance(self.rule, Mitigation):
            raise TypeError(
                f"mitigation must be a pipekit.staleness.Mitigation or the name of one, not "
                f"{type(self.rule).__name__}"
            )

    @cached_property
    def scale(self) -> LossScale | None:
        """The rule of ``loss_scale``."""
        return LossScale.of(self.loss_scale)

    @cached_property
    def rule(self) -> Mitigation | None:
        """The mitigation that ``mitigation`` is or names."""
        return named(self.mitigation) if isinstance(self.mitigation, str) else self.mitigation


@dataclass(frozen=True, kw_only=True)
class Execution:
    """Where and how passes are computed.

    Attributes:
        inputs: the entries that the model takes of batches that are dicts or longer tuples (see
            :meth:`pipekit.Pipeline.train`): of a dict a name or several, or a function from a batch
            to the model's input.  A model from :func:`pipekit.stages` takes those of its example.
        rows: whether entries of such batches are cut with the rows, by name or place:
            ``{"class_weights": False}``; by default, if they have as many elements.
        short_batches: "refuse" batches with fewer rows than microbatches, as the last one of an
            epoch may be, before training if that is known then; or train on them in "fewer"
            microbatches of one row each.
        devices: one for each worker; by default the GPUs in turn, or the CPU.
        recompute: "never", the default without a plan; "always" keeps only the input of a stage for
            the backward and runs its forward again; "except_last" does so but for the last
            microbatch of each batch (torchgpipe, section 2.1).  Or a list, one for each stage.
        autocast: ``torch.bfloat16`` or ``torch.float16``: mixed precision (PipeDream-2BW, section
            5.1).  Forwards and the loss compute in it where :class:`torch.autocast` does, and
            activations are sent in it; weights, gradients and optimizers keep their types.
        cluster: the links whose speed messages between workers are slowed down to; "threads" only.
        timeout: seconds without progress of any worker (under ``torchrun``: of one) after which a
            run fails; None: never.  After 30 s a message says which worker waits for what.

    Raises:
        ValueError: a value is none of those above.
    """

    inputs: Inputs = None
    rows: Mapping[Any, bool] | None = None
    short_batches: str = "refuse"
    devices: Sequence[torch.device | str] | None = None
    recompute: Recompute | Sequence[Recompute] | None = None
    autocast: torch.dtype | None = None
    cluster: Cluster | None = None
    timeout: float | None = None

    def __post_init__(self) -> None:
        names = self.inputs if isinstance(self.inputs, Collection) else [self.inputs]
        is_named = self.inputs is None or all(isinstance(name, str) for name in names)
        if not (is_named or callable(self.inputs)):
            raise ValueError(
                f"inputs must be names of a dict's entries, or a function, not {self.inputs!r}: "
                f"inputs=lambda batch: (batch[0], batch[1]) takes entries of a tuple"
            )
        rows = {} if self.rows is None else self.rows
        if not isinstance(rows, Mapping) or {*map(type, rows.values())} - {bool}:
            raise ValueError(
                f"rows must say of each entry whether it is cut, as {{'labels': True}}, not "
                f"{self.rows!r}"
            )
        require_choice("short_batches", self.short_batches, ("refuse", "fewer"))
        require_choice("autocast", self.autocast, DTYPES)
        if (recompute := self.recompute) is not None:
            for mode in recompute if isinstance(recompute, (list, tuple)) else [recompute]:
                require_choice("recompute", mode, get_args(Recompute))
        if not isinstance(self.cluster, Cluster | None):
            raise ValueError(f"cluster must be a pipekit.Cluster, or None, not {self.cluster!r}")
        require_timeout(self.timeout)


@dataclass(frozen=True, kw_only=True)
class Watch:
    """What a run records and shows.

    Attributes:
        trace: whether to record every worker's tasks.
        memory: whether to follow the tensors in every worker's memory, for
            :func:`pipekit.measure_memory`; it takes time.
        progress: whether to show a progress bar with the loss.
        outputs: whether to keep the last stage's outputs, as ``Run.outputs``.
        observers: watch the workers (:class:`pipekit.engine.Observer`): over "threads" objects that
            all workers call; over either transport functions from a worker's number to its own.
    """

    trace: bool = True
    memory: bool = False
    progress: bool = False
    outputs: bool = False
    observers: Watchers = ()


@dataclass(frozen=True)
class Checkpoints:
    """Where checkpoints are written, and how often.

    Every worker writes its part of a checkpoint without waiting for the others or for the pipeline
    to drain (PipeDream, section 4).

    Attributes:
        folder: workers on several machines need one that they share.
        every: batches between checkpoints (rounded up to whole updates of all stages); by default
            there is one checkpoint at the end.
        keep: how many of the newest complete checkpoints stay; of older ones the last with finite
            weights and loss stays, too.

    Raises:
        ValueError: a number is less than 1, or the folder has no name.
    """

    folder: str | os.PathLike[str]
    every: int | None = None
    keep: int = 2

    def __post_init__(self) -> None:
        if not os.fspath(self.folder):
            raise ValueError("checkpoints must name a folder, '.' for the current one, not ''")
        if self.every is not None and not (isinstance(self.every, Integral) and self.every >= 1):
            raise ValueError(f"every must be at least 1 batch, not {self.every!r}")
        if not (isinstance(self.keep, Integral) and self.keep >= 1):
            raise ValueError(f"keep must be at least 1 checkpoint, not {self.keep!r}")


def require_timeout(timeout: float | None) -> None:
    """Raise ValueError unless it is a number of seconds, or None."""
    if timeout is not None and not (isinstance(timeout, Real) and timeout > 0):
        raise ValueError(f"timeout must be more than 0 s, or None for never, not {timeout!r}")


def require_callable(**functions: object) -> None:
    """Raise TypeError for the first that cannot be called."""
    for name, function in functions.items():
        if isinstance(function, (Optimizer, LRScheduler)):
            raise TypeError(
                f"{name} was made outside, of parameters that no stage trains: pass what makes one "
                f"for each stage, {name}={_maker(function)}"
            )
        if not callable(function):
            raise TypeError(f"{name} must be a function, not {type(function).__name__}")


def require_loss(**functions: object) -> None:
    """Raise TypeError for the first that is not a function of an output and a target."""
    require_callable(**functions)
    for name, function in functions.items():
        if isinstance(function, type):
            raise TypeError(f"{name} is a class: make one, {name}={_called(function)}()")


def _maker(made: Optimizer | LRScheduler) -> str:
    """Return the line that makes an optimizer, or a scheduler."""
    given = "parameters" if isinstance(made, Optimizer) else "optimizer"
    return f"lambda {given}: {_called(type(made))}({given}, ...)"


def _called(kind: type) -> str:
    for home in (torch.optim, torch.optim.lr_scheduler, torch.nn):
        if getattr(home, kind.__name__, None) is kind:
            return f"{home.__name__}.{kind.__name__}"
    return kind.__name__
