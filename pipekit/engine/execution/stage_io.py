"""What a stage takes in and gives out."""

from typing import NamedTuple

from torch import Tensor

from pipekit.engine.config import Loss
from pipekit.trees import Tree


class StageIO(NamedTuple):
    """Activations that a stage takes in or gives out.

    Attributes:
        main: from the stage before, or to the next one.
        skips: by number of the skip connection; of one that is None, nothing.
    """

    main: Tree
    skips: dict[int, Tensor]


class StageGradients(NamedTuple):
    """Gradients of a :class:`StageIO`, those that there are.

    Attributes:
        main: of the differentiable tensors of the main way, by number.
        skips: by number of the skip connection, or of a shared weight.
    """

    main: dict[int, Tensor]
    skips: dict[int, Tensor]


class Target(NamedTuple):
    """What the last stage compares its output with, and the microbatch's weight in the loss."""

    loss: Loss
    target: Tree
    weight: float
