"""What a method does about stale weights: a rule with up to four answers, for each parameter."""

import ast
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from pipekit.names import MITIGATIONS
from pipekit.schedules import Op

if TYPE_CHECKING:  # simulations know mitigations, too, and need no torch
    from torch import Tensor
    from torch.optim import Optimizer


class Pass(NamedTuple):
    """A forward or a backward that is about to run.

    Attributes:
        op: ``Op.FORWARD`` or ``Op.BACKWARD``; with weight stashing always the first, since a
            backward then reads what its forward has read.
        stage: its number, from 0.
        stages: how many there are.
        delay: the most updates that a forward of this stage is behind its own update, in a long
            run; 0 where nothing is stale.
        version: the weights that the schedule has it read, in updates of this run.
        newest: the newest weights of the stage, likewise.
    """

    op: Op
    stage: int
    stages: int
    delay: int
    version: int
    newest: int


class Update(NamedTuple):
    """An update that is about to be made, or has just been made.

    Attributes:
        stage: its number, from 0.
        stages: how many there are.
        delay: as in :class:`Pass`.
        version: the weights at which its gradients were taken, in updates of this run; without
            stashing those that the backwards were to read.
        newest: the weights that it is made from, likewise.
        number: updates of the stage before it, in all runs.
    """

    stage: int
    stages: int
    delay: int
    version: int
    newest: int
    number: int


class Weight(NamedTuple):
    """One parameter of a stage, and what is known of it.

    Attributes:
        read: the version that the schedule names (of an update: at which gradients were taken).
        newest: the newest version.
        optimizer: that of the stage.
        state: what the optimizer keeps of this parameter, {} before its first step.
        options: those of the parameter's group, the learning rate among them.
        memory: tensors of the mitigation's own, by any name; they go into checkpoints.
    """

    read: "Tensor"
    newest: "Tensor"
    optimizer: "Optimizer"
    state: Mapping[str, Any]
    options: Mapping[str, Any]
    memory: dict[str, "Tensor"]


class Mitigation:
    """What a method does about stale weights; every method does nothing unless a subclass does.

    A worker calls them in its own thread, for each trained parameter of a stage, without autograd.
    None may change what it is given, but for ``weight.memory``; one that is not overridden costs
    nothing.  An object has no state beside ``weight.memory``: all stages share it, and it is sent
    to other processes.  Its equations in :mod:`pipekit.oracle.mitigation_equations` judge it.

    Attributes:
        stashing: whether it goes with schedules with weight stashing (True), without (False), or
            with both (None).
        tensors: how many tensors of a parameter's size it keeps of each, for simulations.
    """

    stashing: bool | None = None
    tensors: int = 0

    def require(self, optimizer: "Optimizer") -> None:
        """Raise ValueError if the rule is not defined for an optimizer."""

    def weights(self, at: Pass, weight: Weight) -> "Tensor":
        """Return what a pass reads in place of ``weight.read``.

        It lies in a slot of its own.  With weight stashing it is asked for once a version, when
        this is made; without, before each pass.
        """
        return weight.read

    def rate(self, at: Update) -> float:
        """Return by what the learning rate is multiplied in an update, and in this one alone."""
        return 1.0

    def gradient(self, at: Update, weight: Weight, gradient: "Tensor") -> "Tensor":
        """Return what the optimizer is given in place of a gradient, summed and clipped."""
        return gradient

    def updated(self, at: Update, weight: Weight, before: "Tensor") -> "Tensor":
        """Return what the newest weights are to be; ``weight.newest`` is what the optimizer made.

        Args:
            at: the update, which has been made.
            weight: the parameter; its ``read`` is ``before``.
            before: the weights that the update was made from.
        """
        return weight.newest

    def __repr__(self) -> str:
        """Return its class and its arguments: checkpoints tell trainings apart by that."""
        return f"{type(self).__name__}({', '.join(f'{k}={v!r}' for k, v in vars(self).items())})"

    def slots(self, count: int, stashing: bool) -> int:
        """Return how many weight slots a stage has whose schedule needs ``count``.

        Where passes read what the rule gives them: one more, or with stashing twice as many.
        """
        if not self.overrides("weights"):
            return count
        return 2 * count if stashing else count + 1

    def overrides(self, name: str) -> bool:
        """Return whether a subclass has a method of its own."""
        return getattr(type(self), name) is not getattr(Mitigation, name)


def named(text: str) -> Mitigation:
    """Return the mitigation of a name, say ``spectrain`` or ``pipemare:anneal=500``.

    Raises:
        ValueError: there is no such name, or it does not take these arguments.
    """
    name, _, rest = text.partition(":")
    make = MITIGATIONS.load(name)
    try:
        pairs = [each.split("=", 1) for each in rest.split(",") if each]
        rule: Mitigation = make(**{key: ast.literal_eval(value) for key, value in pairs})
    except (TypeError, ValueError, SyntaxError) as error:
        raise ValueError(
            f"mitigation {text!r}: {error}; write it as {name}:key=value,key=value, or build it, "
            f"e.g. pipekit.staleness.PipeMare(anneal=500)"
        ) from None
    return rule
