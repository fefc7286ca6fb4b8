"""The links over torch.distributed, here over gloo, in processes as torchrun starts them."""

from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

from tests.engine.examples import (
    Trained,
    by_equations,
    data,
    pipeline,
    trained,
    unlike,
    unlike_equations,
)
from tests.engine.gloo import over_gloo


class ByValue(nn.Module):
    """Its output's shape depends on the values of its input."""

    def forward(self, x: Tensor) -> Tensor:
        return x[: 1 + int(x[0, 0] > 0)] if torch.is_grad_enabled() else x


class Mean(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.mean(0, keepdim=True)


def here(
    model: nn.Sequential, method: str, balance: list[int], batches: Any, **how: Any
) -> Trained:
    """Train in processes started from here."""
    return trained(pipeline(model, method, balance, transport="distributed", **how), batches)


def train(
    model: nn.Sequential, method: str, balance: list[int], batches: Any, **how: Any
) -> Trained:
    """Train over gloo."""
    first: Trained = over_gloo(lambda: here(model, method, balance, batches, **how), len(balance))[
        0
    ]
    return first


TRAIN = {"gloo": train, "shared memory": here}


def test_shapes_that_depend_on_values_are_explained() -> None:
    model = nn.Sequential(ByValue(), Mean(), nn.Linear(6, 3))
    with pytest.raises(ValueError, match="need transport='threads'"):
        train(model, "gpipe", [1, 2], data(20), loss=by_sum)


@pytest.mark.filterwarnings("ignore:the loss of 4 rows")  # it is a sum
def test_shapes_that_depend_on_values_in_processes_started_from_here() -> None:
    model = nn.Sequential(ByValue(), Mean(), nn.Linear(6, 3))
    runs = [
        pipeline(model, "gpipe", [1, 2], transport=transport, loss=by_sum).train(data(20)).losses
        for transport in ("threads", "distributed")
    ]
    assert runs[0] == runs[1]


def by_sum(output: Tensor, target: Tensor) -> Tensor:
    return output.square().sum() + 0 * target.sum()


class Pair(NamedTuple):
    one: Tensor
    two: Tensor


class Named(nn.Module):
    def forward(self, x: Tensor) -> Pair:
        return Pair(x, x * 2)


class Unnamed(nn.Module):
    def forward(self, pair: Pair) -> Tensor:
        return pair.one * pair.two


def test_named_tuples() -> None:
    model = nn.Sequential(nn.Linear(6, 6), Named(), Unnamed(), nn.Linear(6, 3))
    truth = by_equations(model, data(2), "flush", [2, 2])
    assert unlike(train(model, "flush", [2, 2], data(2)), truth) == []
    for transport in ("threads", "distributed"):
        assert unlike_equations(model, data(2), "flush", [2, 2], transport=transport) == []


def test_a_named_tuple_without_a_home() -> None:
    """It cannot be found by its name elsewhere; processes started from here get it by value."""

    class Local(NamedTuple):
        one: Tensor

    class Wrap(nn.Module):
        def forward(self, x: Tensor) -> Local:
            return Local(x * 2)

    class Unwrap(nn.Module):
        def forward(self, local: Local) -> Tensor:
            assert isinstance(local, Local)
            return local.one

    model = nn.Sequential(nn.Linear(6, 6), Wrap(), Unwrap(), nn.Linear(6, 3))
    assert unlike_equations(model, data(2), "flush", [2, 2], transport="distributed") == []
    with pytest.raises(TypeError, match="pass on a tuple or a dict"):
        train(model, "flush", [2, 2], data(2))


@pytest.mark.parametrize(
    ("method", "how"), [("flush", "gloo"), ("2bw", "gloo"), ("pipedream", "shared memory")]
)
def test_a_new_shape_in_every_batch(method: str, how: str) -> None:
    """Workers tell each other of new shapes in both directions at once."""
    batches, balance = data(rows=[10, 9, 13, 8, 11, 10, 12]), [1, 1, 1]
    model = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 3))
    truth = by_equations(model, batches, method, balance)
    assert unlike(TRAIN[how](model, method, balance, batches), truth) == []


@pytest.mark.parametrize("how", ["gloo", "shared memory"])
def test_messages_larger_than_any_buffer(how: str) -> None:
    """4 MB a microbatch: nobody may wait for the other to take it."""
    model = nn.Sequential(Widen(), nn.Identity(), Narrow(), nn.Linear(6, 3))
    truth = by_equations(model, data(3), "pipedream", [1, 1, 2])
    assert unlike(TRAIN[how](model, "pipedream", [1, 1, 2], data(3)), truth) == []


class Widen(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(6))

    def forward(self, x: Tensor) -> Tensor:
        return (x * self.scale).repeat(1, 20_000)


class Narrow(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.view(len(x), -1, 6).mean(1)
