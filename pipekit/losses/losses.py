"""Losses: the default, that of tokens, means over all that counts in a batch, and their scale."""

from collections.abc import Callable
from dataclasses import dataclass
from numbers import Real
from typing import Any, Self

import torch
from torch import Tensor
from torch.nn import functional as F

from pipekit.trees import differentiable, leaves


def default_loss(output: Any, target: Tensor) -> Tensor:
    """Return the mean cross entropy of classes, or the mean squared error of other numbers.

    Args:
        output: a tensor, or a structure: its "logits", else its first floating-point tensor.
        target: whole numbers: classes ``[rows, ...]`` of logits ``[rows, ..., classes]``, or of
            ``[rows, classes, ...]`` as torch's own ``cross_entropy`` takes them; those of -100 do
            not count.  Floating-point numbers: of the output's shape.

    Raises:
        ValueError: neither is so; the message gives both shapes.
    """
    logits = main_output(output)
    if target.is_floating_point() and target.shape == logits.shape:
        return F.mse_loss(logits, target)
    if not target.is_floating_point():
        if logits.shape[:-1] == target.shape:
            return F.cross_entropy(logits.flatten(0, -2), target.flatten())
        if logits.ndim > 1 and (len(logits), *logits.shape[2:]) == tuple(target.shape):
            return F.cross_entropy(logits, target)
    raise ValueError(
        f"no loss is known for an output {list(logits.shape)} and a target {list(target.shape)} of "
        f"{target.dtype}: name one"
    )


def made_up_target(output: Any) -> Tensor:
    """Return class 0 for every place of an output; of ``[rows]``, zeros like it."""
    logits = main_output(output)
    if logits.ndim > 1:
        return logits.new_zeros(logits.shape[:-1], dtype=torch.int64)
    return torch.zeros_like(logits)


def main_output(output: Any) -> Tensor:
    """Return what a loss looks at: "logits" if there are such, else the first numbers."""
    logits = output.get("logits") if isinstance(output, dict) else None
    if isinstance(logits, Tensor):
        return logits
    for tensor in leaves(output):
        if tensor.is_floating_point():
            return tensor
    raise ValueError("no tensor of the output is floating-point: it has no loss")


def token_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the mean cross entropy over all places of all sequences.

    Args:
        logits: ``[B, T, V]``.
        targets: int64 ``[B, T]``; a place with -100 does not count.  A batch cut into microbatches
            has the whole batch's loss if each row has equally many places that count.
    """
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())  # [B T, V] and [B T]


class MeanOver:
    """A loss that is one mean over a whole batch, however the batch is split.

    It adds up each microbatch's loss, and divides by what counts in the batch::

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
        """Return the sum over a microbatch, 0 if nothing counts in it, to be divided later."""
        loss = self._summed(output, target)
        if not isinstance(loss, Tensor) or bool(loss.isfinite().all()) or self.count(target):
            return loss
        # 0, whose gradients are zeros, also where the output is not finite.  Not of single numbers:
        # a mean over nothing, which the model has computed, is such a one.
        rows = [tensor for tensor in differentiable(output) if tensor.dim()]
        return torch.stack([tensor[:0].sum() for tensor in rows]).sum() if rows else loss

    def count(self, target: Any) -> float:
        """Return how many count in a target."""
        return float(self._count(target))


@dataclass(frozen=True)
class LossScale:
    """The rule by which a loss scale changes; the defaults are those of ``torch.amp.GradScaler``.

    Attributes:
        initial: the scale to begin with.
        growth: what it is multiplied by after ``interval`` good updates in a row.
        backoff: what it is multiplied by after an update whose gradient is not finite.
        interval: see ``growth``.

    Raises:
        ValueError: a number that would make the scale, or a change of it, meaningless.
    """

    initial: float = 2.0**16
    growth: float = 2.0
    backoff: float = 0.5
    interval: int = 2000

    def __post_init__(self) -> None:
        numbers = self.initial, self.growth, self.backoff, self.interval
        if not all(isinstance(number, Real) for number in numbers):
            raise ValueError(f"{self}: a loss scale is made of numbers")
        if not (0 < self.initial < float("inf") and self.growth >= 1 and 0 < self.backoff <= 1):
            raise ValueError(
                f"{self}: a loss scale is a number above 0, grows by at least 1 and backs off by "
                f"at most 1"
            )
        if self.interval < 1:
            raise ValueError(f"{self}: interval must be at least 1 update")

    @classmethod
    def of(cls, value: "float | str | LossScale | None") -> Self | None:
        """Return the rule of a number that stays, of "dynamic" (the defaults), a rule, or None.

        Raises:
            ValueError: it is none of these.
        """
        if value is None or isinstance(value, cls):
            return value
        if value == "dynamic":
            return cls()
        if isinstance(value, (int, float)):
            return cls(float(value), growth=1.0, backoff=1.0)
        raise ValueError(
            f"loss_scale must be a number, 'dynamic', a pipekit.LossScale or None, not {value!r}"
        )
