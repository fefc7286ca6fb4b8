"""Losses that are means over what counts: tokens but no padding, labels that are not ignored."""

from collections.abc import Callable
from typing import Any

from torch import Tensor


class MeanOver:
    """A loss that is one mean over a whole batch, however the batch is split.

    If each microbatch has a mean of its own, a token in one with few of them counts more than in
    the unsplit batch.  This one adds up each microbatch's loss, and divides by what counts in the
    batch::

        loss = MeanOver(
            lambda logits, labels: F.cross_entropy(
                logits.flatten(0, 1), labels.flatten(), ignore_index=-100, reduction="sum"
            ),
            count=lambda labels: (labels != -100).sum(),
        )

    Args:
        summed: ``summed(output, target)`` of a microbatch: the sum of the losses of what counts.
        count: ``count(target)``: how many count in a microbatch, or in a batch; a number.
    """

    def __init__(
        self, summed: Callable[[Any, Any], Tensor], count: Callable[[Any], Tensor | float]
    ) -> None:
        self._summed, self._count = summed, count

    def __call__(self, output: Any, target: Any) -> Tensor:
        """Return the sum over a microbatch; whoever knows the batch divides it."""
        return self._summed(output, target)

    def count(self, target: Any) -> float:
        """Return how many count in a target."""
        return float(self._count(target))
