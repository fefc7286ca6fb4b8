"""The gradient that an update gets: from the engine, and from one ordinary backward."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from pipekit.datasets import Batch
from pipekit.engine import Pipeline
from pipekit.schedules import Schedule


class TakeGradient(Optimizer):
    """An optimizer that puts each gradient in its parameter's place.

    After one update the weights of the trained model are the gradients that the update got.
    """

    def __init__(self, parameters: list[nn.Parameter]) -> None:
        super().__init__(parameters, {})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Replace the parameters; those without a gradient become zero."""
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.zero_()
                if parameter.grad is not None:
                    parameter.copy_(parameter.grad)


def pipeline_gradients(
    model: nn.Sequential,
    batches: Sequence[Batch],
    schedule: Schedule,
    loss: Callable[[Any, Any], Tensor],
    seed: int = 0,
) -> dict[str, Tensor]:
    """Return the gradient that one update gets from the engine, by the parameters' names.

    Args:
        model: without buffers that training edits.
        batches: what the schedule makes its one update of.
        schedule: with a single update.
        loss: of a microbatch, a mean over its rows.
        seed: of the layers' random numbers.
    """
    pipeline = Pipeline(model, schedule, optimizer=TakeGradient, loss=loss, seed=seed)
    pipeline.train(batches, trace=False)
    return dict(pipeline.state_dict())


def plain_gradients(
    model: nn.Module, batch: Batch, loss: Callable[[Any, Any], Tensor]
) -> dict[str, Tensor]:
    """Return the gradient of an unsplit minibatch by one backward, without the engine."""
    parameters = dict(model.named_parameters())
    found = torch.autograd.grad(loss(model(batch[0]), batch[1]), list(parameters.values()))
    return dict(zip(parameters, found, strict=True))
