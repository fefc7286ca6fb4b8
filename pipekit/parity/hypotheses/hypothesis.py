"""Classes of fault as predictions: the gradients that each would give to SGD.

A hypothesis explains a parameter if its prediction is within the tolerance in every step.  Numbers
in it, say a factor, are first read off the trainer's own values; the prediction then stands for
all their elements.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from pipekit.parity.evidence import Evidence, Prediction


@dataclass(frozen=True)
class Hypothesis:
    """A class of fault, in words, and what it predicts.

    Attributes:
        fault: the class.
        detail: what about this one.
        predicts: the gradients of each step.
        behind: the most updates by which gradients are stale.
        entries: names of those that it is about; None: any.
    """

    fault: str
    detail: str
    predicts: Prediction
    behind: int = 0
    entries: frozenset[str] | None = None


Source = Callable[[Evidence], Iterator[Hypothesis]]
