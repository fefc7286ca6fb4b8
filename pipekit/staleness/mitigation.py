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
    """A forward or a backward that is about to run."""

    op: Op  # FORWARD or BACKWARD; with weight stashing FORWARD, whose weights its backward reads
    stage: int  # from 0
    stages: int  # how many there are
    delay: int  # the most updates that a forward of the stage is behind its own, in a long run
    version: int  # the weights that the schedule has it read, in updates of this run
    newest: int  # the newest weights of the stage, likewise


class Update(NamedTuple):
    """An update that is about to be made, or has just been made."""

    stage: int  # from 0
    stages: int  # how many there are
    delay: int  # as in :class:`Pass`
    version: int  # the weights that its backwards were to read, in updates of this run
    newest: int  # the weights that it is made from, likewise
    number: int  # updates of the stage before it, in all runs


class Weight(NamedTuple):
    """One parameter of a stage, and what is known of it."""

    read: "Tensor"  # the version that the schedule names, of an update that of its gradients
    newest: "Tensor"
    optimizer: "Optimizer"  # of the stage
    state: Mapping[str, Any]  # what it keeps of this parameter, {} before its first step
    options: Mapping[str, Any]  # of the parameter's group, the learning rate among them
    memory: dict[str, "Tensor"]  # the mitigation's own, by any name; they go into checkpoints


class Mitigation:
    """What a method does about stale weights; every method does nothing unless a subclass does.

    A worker calls them in its own thread, for each trained parameter of a stage, without autograd.
    None may change what it is given, but for ``weight.memory``; one that is not overridden costs
    nothing.  An object has no state beside ``weight.memory``: all stages share it, and it is sent
    to other processes.  Its equations in :mod:`pipekit.oracle.mitigation_equations` judge it.
    """

    stashing: bool | None = None  # whether schedules must have it, or must not, or may (None)
    tensors: int = 0  # of a parameter's size that it keeps of each, for simulations

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
        """Return how many weight slots a stage has whose schedule needs ``count``."""
        if not self.overrides("weights"):
            return count
        return 2 * count if stashing else count + 1

    def overrides(self, name: str) -> bool:
        """Return whether a subclass has a method of its own."""
        return getattr(type(self), name) is not getattr(Mitigation, name)


def require_decay(decay: float) -> None:
    """Raise ValueError if a running mean would forget nothing, or grow without end."""
    if not 0 <= decay < 1:
        raise ValueError(f"decay must be from 0 to below 1, not {decay}")


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
