"""Worker processes compute as the process that asks them would."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pipekit.host.numeric_settings import apply_settings, numeric_settings
from tests.engine.examples import data, mlp, pipeline


@pytest.fixture(autouse=True)
def switches_as_before() -> Iterator[None]:
    before = numeric_settings()
    yield
    apply_settings(before)


class Switches(nn.Module):
    """Computes with what torch's switches say."""

    def forward(self, x: Tensor) -> Tensor:
        third = torch.tensor([1.0]) / 3  # of the default type
        deterministic = float(torch.are_deterministic_algorithms_enabled())
        return (x.double() * third + deterministic).to(x.dtype)


def losses(transport: str, model: nn.Sequential, loss: Any, calls: int = 1) -> list[float]:
    pipe = pipeline(model, "flush", [2, 1], m=1, loss=loss, transport=transport)
    found = [each for _ in range(calls) for each in pipe.train(data(2)).losses]
    pipe.close()
    return found


def test_switches_of_torch_are_the_parents_in_every_run() -> None:
    model = nn.Sequential(*mlp(6, 6), Switches(), *mlp(6, 3))
    pipe = pipeline(model, "flush", [2, 1], m=1, transport="distributed")
    threads = pipeline(model, "flush", [2, 1], m=1)
    assert pipe.train(data(2)).losses == threads.train(data(2)).losses
    torch.set_default_dtype(torch.float64)
    torch.use_deterministic_algorithms(True)
    assert pipe.train(data(2)).losses == threads.train(data(2)).losses


class Anneals:
    """A loss that counts its calls."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, output: Tensor, target: Tensor) -> Tensor:
        self.calls += 1
        return F.mse_loss(output, target) * self.calls


def test_a_loss_goes_on_counting_in_the_next_call() -> None:
    model = mlp(6, 6, 6, 3)
    assert losses("threads", model, Anneals(), 2) == losses("distributed", model, Anneals(), 2)


def test_a_loss_that_was_changed_between_two_calls_is_taken_anew() -> None:
    found = []
    for transport in ("threads", "distributed"):
        factor = {"now": 1.0}

        def loss(output: Tensor, target: Tensor, factor: Any = factor) -> Tensor:
            value: Tensor = F.mse_loss(output, target) * factor["now"]
            return value

        pipe = pipeline(mlp(6, 6, 6, 3), "flush", [2, 1], loss=loss, transport=transport)
        first = pipe.train(data(2)).losses
        pipe.evaluate(data(1))
        factor["now"] = 3.0
        found.append(first + pipe.train(data(2)).losses)
        pipe.close()
    assert found[0] == found[1]
