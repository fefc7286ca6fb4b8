"""What is told of a network's outputs on data that it has not learnt from."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from pipekit.losses.losses import token_loss


@dataclass(frozen=True)
class Metric:
    """A number that tells how good outputs are."""

    name: str
    format: str  # as in f"{value:.1%}"
    of: Callable[[Any, Any], Tensor]  # of an output and its target, rows first: the mean over rows

    def shown(self, value: float) -> str:
        """Return a value as text."""
        return format(value, self.format)


def accuracy(output: Tensor, target: Tensor) -> Tensor:
    """Return the fraction of rows whose largest logit is the target's; [B, classes] and [B]."""
    return (output.argmax(dim=1) == target).double().mean()


def bits_per_byte(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the mean cross entropy of the next byte in bits: 8 know nothing of the text.

    Models of bytes report it (the Pile, Gao et al. 2020, section 3.1).  The shapes are
    ``[B, T, 256]`` and ``[B, T]``.
    """
    return token_loss(logits, targets) / math.log(2)


ACCURACY = Metric("accuracy", ".1%", accuracy)
BITS_PER_BYTE = Metric("bits/byte", ".3f", bits_per_byte)
