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
from tests.people.test_torchgpipe import Calls


def by_value() -> nn.Sequential:
    """A layer, whose output's shape depends on the values of its input, and others."""
    return nn.Sequential(
        Calls(lambda x: x[: 1 + int(x[0, 0] > 0)] if torch.is_grad_enabled() else x),
        Calls(lambda x: x.mean(0, keepdim=True)),
        nn.Linear(6, 3),
    )


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
    with pytest.raises(ValueError, match="need transport='threads'"):
        train(by_value(), "gpipe", [1, 2], data(20), loss=by_sum)


def by_sum(output: Tensor, target: Tensor) -> Tensor:
    return output.square().sum() + 0 * target.sum()


class Pair(NamedTuple):
    one: Tensor
    two: Tensor


def test_named_tuples() -> None:
    wrap, unwrap = Calls(lambda x: Pair(x, x * 2)), Calls(lambda pair: pair.one * pair.two)
    model = nn.Sequential(nn.Linear(6, 6), wrap, unwrap, nn.Linear(6, 3))
    truth = by_equations(model, data(2), "flush", [2, 2])
    assert unlike(train(model, "flush", [2, 2], data(2)), truth) == []
    for transport in ("threads", "distributed"):
        assert unlike_equations(model, data(2), "flush", [2, 2], transport=transport) == []


def test_a_named_tuple_without_a_home() -> None:
    """It cannot be found by its name elsewhere; processes started from here get it by value."""

    class Local(NamedTuple):
        one: Tensor

    def unwrap(local: Local) -> Tensor:
        assert isinstance(local, Local)
        return local.one

    wrap = Calls(lambda x: Local(x * 2))
    model = nn.Sequential(nn.Linear(6, 6), wrap, Calls(unwrap), nn.Linear(6, 3))
    assert unlike_equations(model, data(2), "flush", [2, 2], transport="distributed") == []


@pytest.mark.parametrize(("method", "how"), [("2bw", "gloo"), ("pipedream", "shared memory")])
def test_a_new_shape_in_every_batch(method: str, how: str) -> None:
    """Workers tell each other of new shapes in both directions at once."""
    batches, balance = data(rows=[10, 9, 13, 8, 11, 10, 12]), [1, 1, 1]
    model = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 3))
    truth = by_equations(model, batches, method, balance)
    assert unlike(TRAIN[how](model, method, balance, batches), truth) == []


@pytest.mark.parametrize("how", ["gloo", "shared memory"])
def test_messages_larger_than_any_buffer(how: str) -> None:
    """4 MB a microbatch: nobody may wait for the other to take it."""
    narrow = Calls(lambda x: x.view(len(x), -1, 6).mean(1))
    model = nn.Sequential(Widen(), nn.Identity(), narrow, nn.Linear(6, 3))
    truth = by_equations(model, data(3), "pipedream", [1, 1, 2])
    assert unlike(TRAIN[how](model, "pipedream", [1, 1, 2], data(3)), truth) == []


class Widen(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(6))

    def forward(self, x: Tensor) -> Tensor:
        return (x * self.scale).repeat(1, 20_000)
