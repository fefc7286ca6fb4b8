"""What an executor needs of a stage: its passes, whatever computes them."""

from typing import Protocol

from pipekit.engine.execution.stage_io import StageGradients, StageIO, Target


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

        Args:
            x: the input, with leading dimension rows.
            microbatch: which one.
            slot: the weight slot to read.
            target: on the last stage, what to compare with; else None.
            recompute: keep only the input until the backward.
        """

    def recompute(self, microbatch: int, slot: int) -> StageIO:
        """Run again a forward whose graph was not kept; return its output."""

    def backward(
        self, microbatch: int, slot: int, update: int, gradients: StageGradients | None
    ) -> StageGradients:
        """Add the microbatch's gradients to those of the weights.

        Args:
            microbatch: one whose forward is pending, and recomputed if need be.
            slot: the weight slot that its graph reads.
            update: the update that sums these gradients.
            gradients: of the output; None if that is a loss, for ones.

        Returns:
            Those of the input, for the stages that it came from.
        """

    def backward_input(
        self, microbatch: int, slot: int, update: int, gradients: StageGradients | None
    ) -> StageGradients:
        """Return the gradients of the input, and leave those of the weights for later."""

    def backward_weight(self, microbatch: int, slot: int, update: int) -> None:
        """Add the microbatch's gradients to those of the weights, after :meth:`backward_input`."""
