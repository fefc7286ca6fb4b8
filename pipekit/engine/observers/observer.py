"""What can be watched of a run: one small base class whose methods the workers call."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

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
        """Of what a mitigation of stale weights keeps besides."""

    def all_gradients(self) -> Iterable[Tensor]:
        """Return every gradient that is in memory."""


class WorkerView(NamedTuple):
    """What an observer may see of a worker, for as long as the run takes.

    Attributes:
        number: which one it is.
        device: where it computes.
        clock: of the device.
        weights: of each of its stages, by the stage's index; empty in inference.
        waiting_bytes: returns the bytes of gradients that are being summed or wait for their
            update.
    """

    number: int
    device: torch.device
    clock: Clock
    weights: Mapping[int, StageWeights]
    waiting_bytes: Callable[[], int]


class Observer:
    """Watches the workers of a run; every method does nothing unless a subclass says otherwise.

    A worker calls the methods in its own thread (:meth:`part_sent` in the one that sums gradients),
    in the order below, with its number, so that one observer may watch all workers of a process.
    Arguments may be read and not changed.  A method that is not overridden costs nothing.
    """

    def begin(self, worker: WorkerView) -> None:
        """A worker is ready for its first step."""

    def before_step(self, worker: int, step: Step) -> None:
        """A ``worker`` comes to a ``step``, before anything is waited for."""

    def received(self, worker: int, step: Step, message: Message, source: int, tree: Tree) -> None:
        """A ``worker`` has a ``message`` that its ``step`` needs.

        The ``source`` is the worker that sent it; ``tree`` has its tensors, or gradients by number.
        """

    def before_compute(self, worker: int, step: Step, activity: str, inputs: Tree) -> None:
        """A ``worker`` computes: all that its ``step`` has waited for is here.

        The ``activity`` is the op's name, or "RECOMPUTE" for a forward that is run again; of a
        forward, ``inputs`` are the stage's, and on the last stage the target.
        """

    def after_compute(self, worker: int, step: Step, activity: str, outputs: Tree) -> None:
        """A ``worker`` has computed ``activity`` of a ``step``, or issued it on an accelerator.

        The ``outputs`` of a forward are the stage's, on the last stage in training the weighted
        loss; of a backward, the gradients of the stage's inputs.
        """

    def before_move(self, worker: int, step: Step) -> None:
        """A ``worker`` begins to move a microbatch's activations away or back (its ``step``'s op).

        On an accelerator this and :meth:`moved` are called in the stream that moves them.
        """

    def moved(self, worker: int, step: Step, memory: Sequence[Tensor]) -> None:
        """A ``worker`` has moved what its ``step`` moves, or issued that on an accelerator.

        The ``memory`` that the activations leave or take, uint8 [bytes] each.
        """

    def sent(
        self, worker: int, step: Step, message: Message, receiver: int, tree: Tree, size: int
    ) -> None:
        """A ``worker`` has sent a ``message`` of its ``step`` to a ``receiver``, maybe itself.

        The receiver may be writing into the tensors of ``tree``, of ``size`` bytes.
        """

    def after_step(self, worker: int, step: Step) -> None:
        """A ``worker`` is done with a ``step``, and all that it sends is on its way."""

    def part_sent(self, worker: int, receiver: int, key: PartKey, part: FlatBucket) -> None:
        """A ``worker`` is about to send a ``receiver`` a part of a sum of gradients, or its result.

        The ``key`` says which; the tensors of ``part`` are views of the whole bucket.
        """

    def values_summed(self, worker: int, update: int, values: Tensor) -> None:
        """A ``worker`` gives ``values`` [numbers] to decide with all others on an ``update``."""

    def update_decided(self, worker: int, update: int, norm: Tensor | None) -> None:
        """All stages have agreed on an ``update`` (from 1), of which a ``worker`` hears.

        The ``norm`` [] is that of the whole model's gradient before it is clipped; None: it is not,
        or the update is skipped.
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


class Observers(Observer):
    """Several observers as one, of which each event calls those that override its method."""

    def __init__(self, observers: Sequence[Observer]) -> None:
        for name, method in vars(Observer).items():
            if not name.startswith("_"):
                heeding = [each for each in observers if getattr(type(each), name) is not method]
                setattr(self, name, _calling([getattr(each, name) for each in heeding]))


def _calling(functions: Sequence[Callable[..., object]]) -> Callable[..., None]:
    def call(*arguments: object) -> None:
        for function in functions:
            function(*arguments)

    return call
