"""Inputs and outputs of a stage, and the protocol by which an executor runs it."""

from typing import NamedTuple, Protocol

from torch import Tensor

from pipekit.engine.config import Loss
from pipekit.trees import Tree


class StageIO(NamedTuple):
    """Activations into or out of a stage.

    Attributes:
        main: from the stage before, or to the next one; () for a microbatch without rows.
        skips: by number of the skip connection, without those that are None.
    """

    main: Tree
    skips: dict[int, Tensor]


class StageGradients(NamedTuple):
    """The existing gradients of a :class:`StageIO`.

    Attributes:
        main: of the differentiable tensors of the main input or output, by number.
        skips: by number of the skip connection, or of a shared weight.
    """

    main: dict[int, Tensor]
    skips: dict[int, Tensor]


class Target(NamedTuple):
    """The loss of the last stage's output, its target, and the microbatch's weight in it."""

    loss: Loss
    target: Tree
    weight: float


class StageRuntime(Protocol):
    """A stage that can run the passes of a microbatch.

    ``microbatch`` is its index over all runs, the key of its random numbers; ``slot`` the weight
    slot that a pass reads; ``update`` the one that sums the gradients of the weights.
    """

    def infer(self, x: StageIO, microbatch: int) -> StageIO:
        """Return the output for ``x``, keeping nothing."""

    def forward(
        self, x: StageIO, microbatch: int, slot: int, target: Target | None, recompute: bool
    ) -> StageIO:
        """Return the output for ``x``, cut from the graph; on the last stage, the weighted loss.

        ``x`` has a leading dimension of rows; ``target`` is None on all stages but the last; with
        ``recompute`` only the input is kept until the backward.
        """

    def recompute(self, microbatch: int, slot: int) -> StageIO:
        """Run again a forward whose graph was not kept; return its output."""

    def backward(
        self, microbatch: int, slot: int, update: int, gradients: StageGradients | None
    ) -> StageGradients:
        """Add a pending microbatch's gradients to those of the weights; return the input's.

        ``gradients`` are those of the output; None if that is a loss, for ones.
        """

    def backward_input(
        self, microbatch: int, slot: int, update: int, gradients: StageGradients | None
    ) -> StageGradients:
        """Return the gradients of the input, and leave those of the weights for later."""

    def backward_weight(self, microbatch: int, slot: int, update: int) -> None:
        """Add the microbatch's gradients to those of the weights, after :meth:`backward_input`."""
