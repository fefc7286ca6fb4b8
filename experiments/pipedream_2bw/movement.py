"""How far an update moves the weights (PipeDream-2BW, section 3.1)."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer

Factory = Callable[[list[nn.Parameter]], AdamW]


class Movement:
    """Follows ||W(t) - W(t-1)|| / ||W(t)|| over all stages of a pipeline on threads.

    The optimizer is AdamW, whose count of updates tells which one a stage is at.
    """

    def __init__(self) -> None:
        self._squares: dict[int, list[tuple[float, float]]] = {}

    def watching(self, optimizer: Factory) -> Factory:
        """Return the same, what makes a stage's optimizer, with each of its steps followed."""
        return lambda parameters: self._watched(optimizer(parameters))

    @property
    def relative(self) -> list[float]:
        """The relative movement of each update, in the 2-norm."""
        stages = (zip(*squares, strict=True) for _, squares in sorted(self._squares.items()))
        return [math.sqrt(sum(moved) / sum(size)) for moved, size in stages]

    def _watched(self, optimizer: AdamW) -> AdamW:
        before: list[Tensor] = []

        def keep(optimizer: Optimizer, *_: Any) -> None:
            before[:] = [p.detach().clone() for p in _parameters(optimizer)]

        def compare(optimizer: Optimizer, *_: Any) -> None:
            now = _parameters(optimizer)
            first = optimizer.param_groups[0]["params"][0]
            update = int(optimizer.state[first]["step"])
            squares = _square(torch._foreach_sub(now, before)), _square(now)
            self._squares.setdefault(update, []).append(squares)  # from each stage's thread

        optimizer.register_step_pre_hook(keep)
        optimizer.register_step_post_hook(compare)
        return optimizer


def _parameters(optimizer: Optimizer) -> list[Tensor]:
    # An engine's optimizer works on other tensors in every version of the weights.
    return [p.detach() for group in optimizer.param_groups for p in group["params"]]


def _square(tensors: list[Tensor] | tuple[Tensor, ...]) -> float:
    return float(sum(tensor.square().sum() for tensor in tensors))
