"""A loss that is another for a batch than for its microbatches together is warned of."""

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import pipekit as pk
from pipekit import schedules
from pipekit.losses.mean_over import MeanOver
from pipekit.losses.parts import warn_of_other_means
from tests.engine.examples import mlp

CLASSES = torch.tensor([0, 1, 2, 2, 1, 0, 2, 0])
Losses = dict[str, Callable[[Any, Any], Tensor]]


def contrast(output: Tensor, target: Tensor) -> Tensor:
    """Every row against all others, as a batch's negatives."""
    return F.cross_entropy(output @ output.T, torch.arange(len(output)))


def some(output: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(output, target, ignore_index=0, reduction="sum")


OTHER: Losses = {
    "class weights": nn.CrossEntropyLoss(weight=torch.tensor([1.0, 5.0, 9.0])),
    "labels that are ignored": nn.CrossEntropyLoss(ignore_index=0),
    "rows against one another": contrast,
    "a mean in a MeanOver": MeanOver(F.cross_entropy, len),
}
SAME: Losses = {
    "a mean": F.cross_entropy,
    "a sum": nn.CrossEntropyLoss(reduction="sum"),
    "a MeanOver": MeanOver(some, count=lambda target: (target != 0).sum()),
    "random numbers": lambda y, t: F.cross_entropy(F.dropout(y, 0.5), t),
    "what takes whole batches": lambda y, t: F.cross_entropy(y, t.view(8, 1)[:, 0]),
}


def batches() -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(1)
    return [(torch.randn(8, 6, generator=generator), CLASSES) for _ in range(2)]


def train(loss: Any, microbatches: int, **options: Any) -> list[float]:
    def optimizer(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=0.1)

    schedule = schedules.flush(2, microbatches, 2)
    pipe = pk.Pipeline(mlp(6, 6, 3), schedule, optimizer=optimizer, loss=loss, **options)
    return pipe.train(batches()).losses


@pytest.mark.parametrize("transport", ["threads", "distributed"])
@pytest.mark.parametrize("name", OTHER)
def test_it_is_warned_of_before_training(name: str, transport: str) -> None:
    with pytest.warns(UserWarning, match=r"the loss of 4 rows is .* together .*MeanOver.*one mic"):
        train(OTHER[name], 2, transport=transport)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        train(OTHER[name], 1, transport=transport)  # its whole batch's


@pytest.mark.parametrize("name", [name for name in SAME if name != "what takes whole batches"])
def test_what_is_the_same_or_tells_nothing(name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        train(SAME[name], 2)


def test_a_loss_that_takes_no_such_parts_tells_nothing() -> None:
    y, t = torch.zeros(8, 3), CLASSES
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of_other_means(
            SAME["what takes whole batches"], (y, t), [(y[:4], t[:4]), (y[4:], t[4:])], [4, 4]
        )


class Counts:
    """A loss that counts its calls."""

    calls = 0

    def __call__(self, output: Tensor, target: Tensor) -> Tensor:
        self.calls += 1
        return F.cross_entropy(output, target)


def test_the_loss_itself_is_not_called() -> None:
    loss = Counts()
    train(loss, 2)
    assert loss.calls == 2 * 2


def test_half_precision_may_round() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        train(F.cross_entropy, 2, autocast=torch.bfloat16)
