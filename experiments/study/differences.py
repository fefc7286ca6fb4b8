"""How far apart weights or gradients are, and what goes through a model's layers."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from pipekit.datasets import Batch
from pipekit.engine import Pipeline, Watch
from pipekit.schedules import Schedule

T = TypeVar("T")
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


class TakeGradient(Optimizer):
    """An optimizer that puts each gradient, or zero, in its parameter's place.

    After one update the weights of the trained model are the gradients that the update got.
    """

    def __init__(self, parameters: list[nn.Parameter]) -> None:
        super().__init__(parameters, {})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
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
    """Return the gradient that the one update of a schedule gets, by the parameters' names."""
    pipeline = Pipeline(model, schedule, optimizer=TakeGradient, loss=loss, seed=seed)
    pipeline.train(batches, watch=Watch(trace=False))
    return dict(pipeline.state_dict())


def plain_gradients(
    model: nn.Module, batch: Batch, loss: Callable[[Any, Any], Tensor]
) -> dict[str, Tensor]:
    """Return the gradient of an unsplit minibatch by one backward, without the engine."""
    parameters = dict(model.named_parameters())
    found = torch.autograd.grad(loss(model(batch[0]), batch[1]), list(parameters.values()))
    return dict(zip(parameters, found, strict=True))


def noted(modules: Iterable[nn.Module], note: Callable[[nn.Module, Tensor, Tensor], T]) -> list[T]:
    """Return a list that grows by what is noted (of module, input, output) of each forward."""
    found: list[T] = []

    def hook(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        found.append(note(module, inputs[0], output))

    for module in modules:
        module.register_forward_hook(hook)
    return found
