"""A loss that is another for a batch than for its microbatches is warned of."""

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import pipekit as pk
from pipekit import schedules
from pipekit.losses.losses import MeanOver
from tests.engine.examples import mlp, values

CLASSES = torch.tensor([0, 1, 2, 2, 1, 0, 2, 0])
WEIGHTS = torch.tensor([1.0, 5.0, 9.0])
Losses = dict[str, Callable[[Any, Any], Tensor]]
OTHER: Losses = {
    "class weights": nn.CrossEntropyLoss(weight=WEIGHTS),
    "a function's class weights": partial(F.cross_entropy, weight=WEIGHTS),
    "labels that are ignored": nn.CrossEntropyLoss(ignore_index=0),
}


def some(output: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(output, target, ignore_index=0, reduction="sum")


SAME: Losses = {
    "a mean": F.cross_entropy,
    "a sum": nn.CrossEntropyLoss(weight=WEIGHTS, reduction="sum"),
    "a MeanOver": MeanOver(some, count=lambda target: (target != 0).sum()),
}


def train(loss: Any, microbatches: int, **options: Any) -> list[float]:
    def optimizer(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=0.1)

    generator = torch.Generator().manual_seed(1)
    batches = [(torch.randn(8, 6, generator=generator), CLASSES) for _ in range(2)]
    schedule = schedules.flush(2, microbatches).take(2)
    pipe = pk.Pipeline(mlp(6, 6, 3), schedule, optimizer=optimizer, loss=loss, **values(**options))
    return pipe.train(batches).losses


@pytest.mark.parametrize("transport", ["threads", "distributed"])
@pytest.mark.parametrize("name", OTHER)
def test_it_is_warned_of_before_training(name: str, transport: str) -> None:
    with pytest.warns(UserWarning, match=r"the loss of 8 rows is .* together .*MeanOver"):
        train(OTHER[name], 2, transport=transport)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        train(OTHER[name], 1, transport=transport)  # its whole batch's


@pytest.mark.parametrize("autocast", [None, torch.bfloat16])
@pytest.mark.parametrize("name", SAME)
def test_what_is_the_same(name: str, autocast: torch.dtype | None) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        train(SAME[name], 2, autocast=autocast)


def test_a_loss_that_counts_its_calls_counts_those_of_training() -> None:
    calls: list[int] = []
    hooked = nn.CrossEntropyLoss()
    hooked.register_forward_hook(lambda module, args, output: calls.append(1))
    for loss in (hooked, lambda output, target: hooked(output, target)):
        calls.clear()
        train(loss, 2)
        assert len(calls) == 2 * 2
