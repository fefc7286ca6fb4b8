"""What is told of a network's outputs on data that it has not learnt from."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from pipekit.losses.losses import token_loss


@dataclass(frozen=True)
class Metric:
    """A number that tells how good outputs are.

    Attributes:
        name: for titles and tables.
        format: how the number is printed, as in ``f"{value:.1%}"``.
        of: from an output and its target, rows first in both, to the mean over rows.
    """

    name: str
    format: str
    of: Callable[[Any, Any], Tensor]

    def shown(self, value: float) -> str:
        """Return a value as text."""
        return format(value, self.format)


def accuracy(output: Tensor, target: Tensor) -> Tensor:
    """Return the fraction of rows whose largest logit is the target's; [B, classes] and [B]."""
    return (output.argmax(dim=1) == target).double().mean()


def bits_per_byte(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the mean cross entropy of the next byte in bits: 8 know nothing of the text.

    It is what models of bytes report, since a perplexity depends on how text is cut into tokens
    (the Pile, Gao et al. 2020, section 3.1).

    Args:
        logits: ``[B, T, 256]``.
        targets: int64 ``[B, T]``.
    """
    return token_loss(logits, targets) / math.log(2)


ACCURACY = Metric("accuracy", ".1%", accuracy)
BITS_PER_BYTE = Metric("bits/byte", ".3f", bits_per_byte)
