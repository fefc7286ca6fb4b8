"""What can be said of a training beside its model and schedule: four values, passed on whole."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import cached_property, wraps
from inspect import signature
from typing import ParamSpec, TypeVar, get_args

import torch

from pipekit.choices import require_choice
from pipekit.clusters import Cluster
from pipekit.engine.observers.observer import Watchers
from pipekit.engine.runs.batch_reader import Inputs
from pipekit.engine.updates.optimizer_state import Groups
from pipekit.engine.updates.weight_versions import LRSchedulerFactory
from pipekit.layers.pass_state import DTYPES
from pipekit.losses.loss_scale import LossScale
from pipekit.plans import Recompute
from pipekit.staleness import Mitigation, named

P = ParamSpec("P")
T = TypeVar("T")

VALIDATE = ("first", "later")
"""When stages agree on an update."""


@dataclass(frozen=True, kw_only=True)
class Updates:
    """How weights are updated.

    Attributes:
        clip_norm: largest norm of an update's gradient over all stages, or None; ``math.inf``: only
            find it out, for ``on_batch``.
        loss_scale: a number by which losses are multiplied, and gradients divided at their update,
            so that small ones survive in float16; "dynamic": it follows the rule of
            ``torch.amp.GradScaler``; or a :class:`pipekit.LossScale`, that rule with other numbers.
            An update whose gradient is not finite on any stage is then skipped on all of them:
            neither optimizer nor scheduler takes a step.  1 skips without scaling.
        validate: when stages agree on clipping and skipping an update: "first", before it, which
            is a global stop; or "later": each makes it, goes on with forwards, and goes back if it
            was wrong (Zero Bubble Pipeline Parallelism, section 4).  Results are equal to the bit;
            it takes a copy of the weights, their gradients and the optimizer's state.
        groups: ``groups(name, parameter)`` gives the optimizer's options for a parameter, by its
            name in the model: ``lambda name, p: {"weight_decay": 0.0} if p.dim() < 2 else {}``.
            Those with the same options form a group; ``optimizer`` gets a list of groups.
        lr_scheduler: makes a learning-rate scheduler from an optimizer.
        lr_step: when it is stepped: after each "update", or by a "call" of
            :meth:`pipekit.Pipeline.step_lr`.
        mitigation: what is done about stale weights, a :class:`pipekit.staleness.Mitigation`, or
            its name, perhaps with arguments: "spectrain", "pipeoptim", "pipemare:anneal=500",
            "gap-aware", "error-feedback".  Each goes with some schedules only; predicted weights
            take slots of their own.
        finite: whether a loss that is not finite ends the run, with a FloatingPointError, before
            its batch changes any weights.  On GPUs the host then waits for each loss.

    Raises:
        TypeError: a function is not one, or a mitigation neither a rule nor a name.
        ValueError: a value is none of those above.
    """

    clip_norm: float | None = None
    loss_scale: float | str | LossScale | None = None
    validate: str = "first"
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
        require_choice("validate", self.validate, VALIDATE)
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

    @property
    def validates_later(self) -> bool:
        """Whether updates are made before all stages have agreed to them."""
        decided = self.clip_norm is not None or self.scale is not None
        return self.validate == "later" and decided


@dataclass(frozen=True, kw_only=True)
class Execution:
    """Where and how passes are computed.

    Attributes:
        inputs: of batches that are dicts or longer tuples (see :meth:`pipekit.Pipeline.train`),
            which entries the model takes: a name or several, or a function from a batch to the
            model's input.  A model from :func:`pipekit.stages` takes those of its example.
        short_batches: what becomes of a batch with fewer rows than microbatches, as the last one of
            an epoch may be: "refuse" it, before training begins if the batches are a list or a
            ``DataLoader``; or train on it in "fewer" microbatches, of a row each.
        devices: one for each worker; by default the GPUs in turn, or the CPU.
        recompute: "never", unless a plan says otherwise; "always": keep only the input of a stage
            for the backward and run its forward again; "except_last": likewise but for the last
            microbatch of each batch (torchgpipe, section 2.1).  Or a list, one for each stage.
        autocast: ``torch.bfloat16`` or ``torch.float16``: mixed precision (PipeDream-2BW, section
            5.1).  Forwards and the loss compute in it where that is safe (:class:`torch.autocast`),
            and activations travel as they come; weights, their gradients and the optimizer's state
            keep their types.
        cluster: links to slow the messages between workers down to; over "threads" only.
        timeout: seconds after which a run fails in which no worker (under ``torchrun``: one) gets
            further; None: never.  After 30 s it is said anyway who is at what and waits for what.

    Raises:
        ValueError: a value is none of those above.
    """

    inputs: Inputs = None
    short_batches: str = "refuse"
    devices: Sequence[torch.device | str] | None = None
    recompute: Recompute | Sequence[Recompute] | None = None
    autocast: torch.dtype | None = None
    cluster: Cluster | None = None
    timeout: float | None = None

    def __post_init__(self) -> None:
        require_choice("short_batches", self.short_batches, ("refuse", "fewer"))
        require_choice("autocast", self.autocast, DTYPES)
        recompute = [] if self.recompute is None else self.recompute
        for mode in [recompute] if isinstance(recompute, str) else recompute:
            require_choice("recompute", mode, get_args(Recompute))
        require_timeout(self.timeout)


@dataclass(frozen=True, kw_only=True)
class Watch:
    """What is recorded and shown of a run.

    Attributes:
        trace: whether to record what every worker does.
        memory: whether to follow what lies in every worker's memory, for
            :func:`pipekit.measure_memory`; it takes time.
        progress: whether to show a bar with the loss.
        outputs: whether to keep what the last stage gives, as ``Run.outputs``.
        observers: watch the workers (:class:`pipekit.engine.Observer`): over "threads" objects that
            all workers call; over either transport functions from a worker's number to its
            observer, which is made where the worker runs.
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
        folder: where; for workers on several machines, one that they share.
        every: batches from one checkpoint to the next (rounded up to where all stages have made
            whole updates); by default there is one at the end.
        keep: how many complete checkpoints stay, the newest ones; of older ones the last whose
            weights and loss are finite stays as well.

    Raises:
        ValueError: a number is less than 1.
    """

    folder: str | os.PathLike[str]
    every: int | None = None
    keep: int = 2

    def __post_init__(self) -> None:
        if self.every is not None and self.every < 1:
            raise ValueError(f"every must be at least 1 batch, not {self.every}")
        if self.keep < 1:
            raise ValueError(f"keep must be at least 1 checkpoint, not {self.keep}")

    @classmethod
    def of(cls, value: "str | os.PathLike[str] | Checkpoints | None") -> "Checkpoints | None":
        """Return what a user's ``checkpoints`` means: in a folder alone, one at the end."""
        return value if value is None or isinstance(value, Checkpoints) else cls(value)


def require_timeout(timeout: float | None) -> None:
    """Raise ValueError unless it is a number of seconds, or None."""
    if timeout is not None and not timeout > 0:
        raise ValueError(f"timeout must be more than 0 s, or None for never, not {timeout}")


def require_callable(**functions: object) -> None:
    """Raise TypeError for the first that cannot be called."""
    for name, function in functions.items():
        if not callable(function):
            raise TypeError(f"{name} must be a function, not {type(function).__name__}")


MOVED: dict[str, str] = {
    field.name: (
        f"{field.name} is a field of {value.__name__}: pass "
        f"{argument}={value.__name__}({first}{field.name}=...) to {calls}"
    )
    for value, argument, first, calls in (
        (Updates, "updates", "", "Pipeline()"),
        (Execution, "execution", "", "Pipeline()"),
        (Watch, "watch", "", "train() or PipelinedModule()"),
        (Checkpoints, "checkpoints", "folder, ", "train()"),
    )
    for field in fields(value)
    if field.name != "folder"
}
"""What is said of each field that is given to a call by its name alone."""


def refusing_fields(function: Callable[P, T]) -> Callable[P, T]:
    """Return a function that answers a value's field among its arguments by the call to write."""
    fields_alone = MOVED.keys() - signature(function).parameters.keys()

    @wraps(function)
    def called(*args: P.args, **kwargs: P.kwargs) -> T:
        if moved := fields_alone & kwargs.keys():
            raise TypeError(MOVED[min(moved)])
        return function(*args, **kwargs)

    return called
