"""The plain loop that a user would write, which a pipeline's training equals."""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from pipekit.trees import tree_map


def plain_loop(
    model: nn.Module,
    optimizer: Callable[[Any], torch.optim.Optimizer],
    loss: Callable[..., Tensor],
    batches: Iterable[Any],
    microbatches: int = 1,
) -> list[float]:
    """Train on pairs of input and target; return the losses, each the mean over microbatches.

    The input is what the forward takes: alone, or a tuple, or by name in a dict.
    """
    stepper, losses = optimizer(model.parameters()), []
    for batch in batches:
        stepper.zero_grad()
        total = 0.0
        for k in range(microbatches):
            x, y = tree_map(partial(_part, k, microbatches), tuple(batch))
            value = loss(_called(model, x), y) / microbatches
            value.backward()
            total += value.item()
        stepper.step()
        losses.append(total)
    return losses


def _part(number: int, parts: int, tensor: Tensor) -> Tensor:
    return tensor.chunk(parts)[number]


def _called(model: nn.Module, given: Any) -> Any:
    if isinstance(given, dict):
        return model(**given)
    return model(*given) if isinstance(given, tuple) else model(given)
