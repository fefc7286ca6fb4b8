"""The plain loop that a user would write, which a pipeline's training equals."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn


def plain_loop(
    model: nn.Module,
    optimizer: Callable[[Any], torch.optim.Optimizer],
    loss: Callable[..., Tensor],
    batches: Iterable[Any],
    microbatches: int = 1,
) -> list[float]:
    """Train on pairs of input and target; return the losses, each the mean over microbatches."""
    stepper, losses = optimizer(model.parameters()), []
    for inputs, target in batches:
        stepper.zero_grad()
        parts = zip(inputs.chunk(microbatches), target.chunk(microbatches), strict=True)
        total = 0.0
        for x, y in parts:
            value = loss(model(x), y) / microbatches
            value.backward()
            total += value.item()
        stepper.step()
        losses.append(total)
    return losses
