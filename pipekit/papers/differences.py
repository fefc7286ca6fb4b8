"""How far apart two sets of tensors are: weights or gradients, by their names in the model."""

from collections.abc import Mapping

import torch
from torch import Tensor

Tensors = Mapping[str, Tensor]
"""By name in the unsplit model's ``state_dict``."""


def bit_equal(a: Tensors, b: Tensors) -> bool:
    """Return whether two sets have the same names and the same bits."""
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def largest_difference(a: Tensors, b: Tensors) -> float:
    """Return the largest absolute difference between two numbers of the same place."""
    return max(float((a[name] - b[name]).abs().max()) for name in a)


def relative_difference(a: Tensors, b: Tensors) -> float:
    """Return ||a - b|| / ||b||, the 2-norms taken over all tensors together."""
    distance = sum(float((a[name] - b[name]).double().square().sum()) for name in a)
    norm = sum(float(b[name].double().square().sum()) for name in b)
    return float((distance / norm) ** 0.5)
