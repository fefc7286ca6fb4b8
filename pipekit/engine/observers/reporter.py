"""Tells the program that trains of losses and updates, without keeping the last stage waiting."""

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor

from pipekit.devices import HostNumber
from pipekit.engine.config import RunConfig
from pipekit.engine.observers.observer import Observer, WorkerView
from pipekit.schedules import Op, Step
from pipekit.trees import Tree


class LossKnown(NamedTuple):
    """A microbatch's part of its batch's loss is known."""

    microbatch: int
    loss: float


class UpdateMade(NamedTuple):
    """The last stage has made an update.

    Attributes:
        batches: of the run's table, that it sums.
        learning_rates: of the groups of the stage's optimizer.
        gradient_norm: of the whole model, before clipping, or None.
        held_bytes: by the worker after the update, or None if they are not counted.
    """

    batches: range
    learning_rates: tuple[float, ...]
    gradient_norm: float | None
    held_bytes: int | None


Listener = Callable[[LossKnown | UpdateMade], None]
"""Is told how far a run is, by a worker that has the last stage."""


class Reporter(Observer):
    """Tells of the losses and updates of a worker with the last stage, each kind in order.

    Args:
        tell: called with each; on an accelerator, which computes while its worker goes on, when
            the worker has next computed something of its kind.
        config: of the run.
        held: returns the bytes that the worker holds, or None if they are not counted.
    """

    def __init__(
        self, tell: Listener, config: RunConfig, held: Callable[[], int | None] = lambda: None
    ) -> None:
        self._tell, self._config, self._held = tell, config, held
        self._losses: deque[tuple[int, HostNumber]] = deque()
        self._rates: dict[int, tuple[float, ...]] = {}  # by update, until it is told of
        self._norms: dict[int, HostNumber | None] = {}  # likewise
        self._told = config.resume.boundary.batches if config.resume else 0

    def begin(self, worker: WorkerView) -> None:
        """Note the last stage's optimizer."""
        self._last = len(self._config.stage_workers) - 1
        self._optimizer = worker.weights[self._last].optimizer

    def before_compute(self, worker: int, step: Step, activity: str, inputs: Tree) -> None:
        """Note the rates with which the last stage is about to be updated."""
        if step.task.op is Op.UPDATE and step.task.stage == self._last:
            groups = self._optimizer.param_groups if self._optimizer else []
            self._rates[step.update] = tuple(float(group["lr"]) for group in groups)

    def update_decided(self, worker: int, update: int, norm: Tensor | None) -> None:
        """Note the norm of an update's gradient."""
        self._norms[update] = None if norm is None else HostNumber(norm)

    def after_compute(self, worker: int, step: Step, activity: str, outputs: Tree) -> None:
        """Tell of what has arrived."""
        if activity == Op.FORWARD.name and not step.sends:
            self._losses.append((step.task.microbatch, HostNumber(outputs.main)))
        elif step.task.op is not Op.UPDATE:
            return
        self._tell_of(lambda number: number.is_here)

    def end(self, worker: int) -> None:
        """Wait for what is left, and tell of it."""
        self._tell_of(lambda number: True)

    def _tell_of(self, is_here: Callable[[HostNumber], bool]) -> None:
        while self._losses and is_here(self._losses[0][1]):
            microbatch, loss = self._losses.popleft()
            self._tell(LossKnown(microbatch, loss.item()))
        for update in list(self._rates):
            if self._config.updates.clip_norm is not None and update not in self._norms:
                return  # all stages agree on it later
            norm = self._norms.get(update)
            if norm and not is_here(norm):
                return
            self._norms.pop(update, None)
            summed = self._config.sums[self._last][update - 1].batches
            batches = range(self._told, self._told + summed)
            self._told += summed
            of_all = norm.item() if norm else None
            self._tell(UpdateMade(batches, self._rates.pop(update), of_all, self._held()))
