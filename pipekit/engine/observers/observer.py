"""What can be watched of a run: one small base class whose methods the workers call."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from pipekit.devices import Clock
from pipekit.engine.transport import FlatBucket, PartKey
from pipekit.schedules import Message, Step
from pipekit.trees import Tree


class StageWeights(Protocol):
    """The weights of a stage, in one version or several."""

    @property
    def modules(self) -> Sequence[nn.Module]:
        """The layers, once for each version."""

    @property
    def parameters(self) -> Sequence[Sequence[Tensor]]:
        """The tensors that gradients come to, for each version."""

    @property
    def optimizer(self) -> Optimizer | None:
        """What updates them, if it is known."""

    @property
    def kept_bytes(self) -> int:
        """Bytes of what is kept of them besides, by a mitigation of stale weights."""

    def all_gradients(self) -> Iterable[Tensor]:
        """Return every gradient that is in memory."""


class WorkerView(NamedTuple):
    """What an observer may see of a worker, for as long as the run takes.

    Attributes:
        number: which one it is.
        device: where it computes.
        clock: of the device; its marks cost nothing but on an accelerator an event each.
        weights: of each of its stages, by the stage's index; empty in inference.
        waiting_bytes: returns the bytes of gradients that are being summed with other workers, or
            have been and wait for their update; with those of the copies that are kept until an
            update is validated.
    """

    number: int
    device: torch.device
    clock: Clock
    weights: Mapping[int, StageWeights]
    waiting_bytes: Callable[[], int]


class Observer:
    """Watches the workers of a run; every method does nothing unless a subclass says otherwise.

    A worker calls the methods in its own thread (:meth:`part_sent` of stages with replicas in the
    thread that sums their gradients), in the order below, each with its own number, so that one
    observer may watch all workers of a process.  What it is handed it may read and not change.  A
    method that is not overridden costs nothing.
    """

    def begin(self, worker: WorkerView) -> None:
        """A worker is ready for its first step."""

    def before_step(self, worker: int, step: Step) -> None:
        """A step begins, before anything is waited for.

        Args:
            worker: its number.
            step: what is to be executed.
        """

    def received(self, worker: int, step: Step, message: Message, source: int, tree: Tree) -> None:
        """A message that a step needs is here.

        Args:
            worker: the receiver's number.
            step: what needs it.
            message: its name.
            source: the worker that sent it.
            tree: its tensors, or gradients by number.
        """

    def before_compute(self, worker: int, step: Step, activity: str, inputs: Tree) -> None:
        """Computing begins: all that a step has waited for is here.

        Args:
            worker: its number.
            step: what is executed.
            activity: the op's name, or "RECOMPUTE" for a forward that is run again.
            inputs: of a forward: what the stage takes in, and on the last stage the target.
        """

    def after_compute(self, worker: int, step: Step, activity: str, outputs: Tree) -> None:
        """Computing has ended (on an accelerator: has been issued).

        Args:
            worker: its number.
            step: what is executed.
            activity: as in :meth:`before_compute`.
            outputs: of a forward: what the stage gives out, on the last stage in training the
                weighted loss; of a backward, the gradients of what the stage took in.
        """

    def sent(
        self, worker: int, step: Step, message: Message, receiver: int, tree: Tree, size: int
    ) -> None:
        """A message has been sent, possibly to the worker itself.

        Args:
            worker: the sender's number.
            step: what sends it.
            message: its name.
            receiver: the worker that it is for.
            tree: its tensors; the receiver may be writing into them.
            size: its bytes.
        """

    def after_step(self, worker: int, step: Step) -> None:
        """A step is done, and all that it sends is on its way.

        Args:
            worker: its number.
            step: what was executed.
        """

    def part_sent(self, worker: int, receiver: int, key: PartKey, part: FlatBucket) -> None:
        """A part of a sum of gradients is about to be sent.

        Args:
            worker: the sender's number.
            receiver: the worker that it is for.
            key: which sum it belongs to, and whether it is still to be summed or is the sum.
            part: its tensors, which are views of the whole bucket.
        """

    def values_summed(self, worker: int, update: int, values: Tensor) -> None:
        """A few numbers are about to be summed over all workers, to decide on an update.

        Args:
            worker: its number.
            update: the number of the update, from 1.
            values: what this worker gives, [numbers].
        """

    def update_decided(self, worker: int, update: int, norm: Tensor | None) -> None:
        """All stages have agreed on an update: where gradients are clipped, or losses scaled.

        Args:
            worker: its number.
            update: the number of the update, from 1.
            norm: of the whole model's gradient before it is clipped, []; None if it is not, or the
                update is skipped.
        """

    def end(self, worker: int) -> None:
        """A worker has done all its steps."""

    def close(self, worker: int) -> None:
        """A worker stops, at its end or by an error: let go of whatever is held."""


ObserverFactory = Callable[[int], Observer]
"""Makes the observer of one worker, from its number, where that worker runs."""

Watchers = Sequence[Observer | ObserverFactory]


def observers_of(watchers: Watchers, worker: int) -> list[Observer]:
    """Return a worker's observers: those that were given, and those that are made for it."""
    return [each if isinstance(each, Observer) else each(worker) for each in watchers]


def listeners(
    observers: Iterable[Observer], method: Callable[..., None], worker: int
) -> list[Callable[..., Any]]:
    """Return what to call for one kind of event on a worker: of those observers that heed it.

    Args:
        observers: in the order in which they are called.
        method: of :class:`Observer`, say ``Observer.sent``.
        worker: whose events.
    """
    name = method.__name__
    return [
        partial(getattr(observer, name), worker)
        for observer in observers
        if getattr(type(observer), name) is not method
    ]
