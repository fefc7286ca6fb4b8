"""A backward in two parts: the same gradients to the bit, whatever the graph looks like."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pipekit import models
from pipekit.layers.split_backward import backward_input


class Positions(nn.Module):
    """Adds a weight to the input."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(6))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.weight


class Twice(nn.Module):
    """Uses one layer twice."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layer(torch.tanh(self.layer(x)))
        return y


class Hooked(nn.Linear):
    """A gradient hook within the layers, where a weight branches off."""

    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        y.register_hook(lambda gradient: gradient * 3)
        return y


class Deaf(nn.Module):
    """Its output has nothing of its input, but of a weight."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 6))

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * 2


def normalised() -> Any:
    return nn.utils.parametrizations.weight_norm(nn.Linear(6, 6))


GRAPHS: dict[str, Callable[[], nn.Module]] = {
    "mlp": lambda: nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6), nn.ReLU()),
    "branches": lambda: nn.Sequential(Positions(), nn.LayerNorm(6), Positions()),
    "a layer used twice": Twice,
    "a hook": lambda: nn.Sequential(nn.Linear(6, 6), Hooked(6, 6), nn.Tanh(), Hooked(6, 6)),
    "weight norm": normalised,
    "no weights": nn.Tanh,
    "no way to the input": Deaf,
    "frozen": lambda: nn.Sequential(nn.Linear(6, 6).requires_grad_(False), nn.Linear(6, 6)),
    "batch norm": lambda: nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Linear(6, 6)),
    "transformer": lambda: nn.TransformerEncoderLayer(6, 2, 12, dropout=0.0, batch_first=True),
    "bfloat16": lambda: nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 6)).to(torch.bfloat16),
}


def gradients(module: nn.Module, split: bool, autocast: bool) -> list[Any]:
    """Two backwards, added up: the gradients of the input, and of the weights."""
    found: list[Any] = []
    exact: bool | None = None
    dtype = next((p.dtype for p in module.parameters()), torch.float32)
    for seed in (0, 1):
        generator = torch.Generator().manual_seed(seed)
        x = torch.randn(4, 6, generator=generator).to(dtype).requires_grad_()
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            y = module(x)
        seeds = [torch.randn(y.shape, generator=generator).to(y.dtype)]
        if split:
            rest = backward_input([y], seeds, [x])
            found.append(None if x.grad is None else x.grad.clone())
            if exact is None:
                exact = rest.is_exact()
            rest.run(exact)
        else:
            torch.autograd.backward([y], seeds)
            found.append(None if x.grad is None else x.grad.clone())
    return [*found, *(p.grad for p in module.parameters())]


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("graph", GRAPHS)
def test_the_gradients_are_those_of_a_whole_backward(graph: str, autocast: bool) -> None:
    results = []
    for split in (False, True):
        torch.manual_seed(0)
        results.append(gradients(GRAPHS[graph](), split, autocast))
    for whole, parts in zip(*results, strict=True):
        if whole is None:
            assert parts is None
        else:
            assert torch.equal(whole, parts)
            assert whole.stride() == parts.stride()


@pytest.mark.parametrize("graph", ["mlp", "branches", "batch norm", "transformer", "weight norm"])
def test_no_gradient_of_an_activation_is_computed_twice(graph: str) -> None:
    module = GRAPHS[graph]()
    x = torch.randn(4, 6, requires_grad=True)
    rest = backward_input([module(x).sum()], None, [x])
    assert rest.is_exact()


def test_a_hook_that_would_be_called_twice_is_noticed() -> None:
    x = torch.randn(4, 6, requires_grad=True)
    assert not backward_input([GRAPHS["a hook"]()(x).sum()], None, [x]).is_exact()


def test_the_first_part_leaves_the_weights_alone() -> None:
    module = models.mlp(width=6, depth=2)
    x = torch.randn(4, 6, requires_grad=True)
    backward_input([module(x).sum()], None, [x])
    assert x.grad is not None
    assert all(p.grad is None for p in module.parameters())
