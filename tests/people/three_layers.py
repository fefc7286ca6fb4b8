"""A network of three layers in a pipeline of two stages, beside the plain loop."""

import copy
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

import pipekit as pk
from pipekit import schedules
from pipekit.schedules import Schedule
from tests.engine.examples import different
from tests.people.plain import plain_loop

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
