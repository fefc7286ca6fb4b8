"""The plain loop that a user would write, and a network of three layers trained beside it."""

import copy
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

import pipekit as pk
from pipekit import schedules
from pipekit.schedules import Schedule
from pipekit.trees import tree_map
from tests.engine.examples import different


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


SGD = partial(torch.optim.SGD, lr=0.1)
CE = nn.CrossEntropyLoss()


def batches(count: int = 3) -> list[tuple[Tensor, Tensor]]:
    return [(torch.randn(8, 8), torch.randint(3, (8,))) for _ in range(count)]


def network(layer: nn.Module) -> nn.Sequential:
    return nn.Sequential(nn.Linear(8, 8), layer, nn.Linear(8, 3))


def pipe(
    model: nn.Sequential,
    schedule: Schedule | None = None,
    balance: list[int] | None = None,
    **settings: Any,
) -> pk.Pipeline:
    schedule = schedule or schedules.flush(2, 4)
    chosen: dict[str, Any] = {"optimizer": SGD, "loss": CE, **settings}
    return pk.Pipeline(model, schedule, balance=balance or [2, 1], **chosen)


def assert_as_plain(model: nn.Sequential, evaluated: bool = False, **settings: Any) -> pk.Pipeline:
    """Require the plain loop's weights of a pipeline, evaluated before or not, and return it."""
    data, plain = batches(), copy.deepcopy(model)
    pipeline = pipe(model, **settings)
    if evaluated:
        pipeline.evaluate(data)
    pipeline.train(data)
    plain_loop(plain, SGD, CE, data, microbatches=4)
    assert different(pipeline.state_dict(), plain.state_dict()) == []
    return pipeline


def multiplied(x: Tensor, factor: Tensor) -> Tensor:
    return x * factor
