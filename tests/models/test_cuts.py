"""AmoebaNet-D and U-Nets cut anywhere by hand compute what the whole ones do, to the bit."""

import copy
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

from pipekit.layers.seeded import layer_seed
from pipekit.layers.skips import Skippable, carrying
from pipekit.models import amoebanet_d, unet
from pipekit.trees import Tree, differentiable, leaves, tree_map


class Passes(NamedTuple):
    """What a forward and a backward gave: the gradients of the parameters, then the input's."""

    output: Tensor
    gradients: list[Tensor]


def whole(model: nn.Sequential, x: Tensor) -> Passes:
    x = x.detach().requires_grad_()
    output = run(model, 0, x)
    wanted = [*model.parameters(), x]
    return Passes(output, list(torch.autograd.grad(output, wanted, torch.ones_like(output))))


def cut(model: nn.Sequential, x: Tensor, balance: Sequence[int]) -> Passes:
    """Run stages one by one; between them go detached tensors forth and their gradients back."""
    layers, first = iter(model), 0
    skips: dict[str, Tensor] = {}
    stages: list[tuple[list[nn.Module], Tree, dict[str, Tensor], Tree, dict[str, Tensor]]] = []
    value: Any = x
    for length in balance:
        own = list(islice(layers, length))
        value = tree_map(leaf, value)
        popped = {name: leaf(skips.pop(name)) for name in popped_by(own) & skips.keys()}
        with carrying(popped) as carried:
            output = run(own, first, value)
        stages.append((own, value, popped, output, carried.outgoing))
        skips |= carried.outgoing
        value, first = output, first + length
    assert not skips

    gradients: list[Tensor] = []
    arrived: list[Tensor | None] = [torch.ones_like(t) for t in leaves(value)]
    of_skips: dict[str, Tensor] = {}
    for own, entered, popped, output, stashed in reversed(stages):
        ends = [*differentiable(output), *stashed.values()]
        seeds = [*arrived, *(of_skips.pop(name) for name in stashed)]
        reached = [number for number, seed in enumerate(seeds) if seed is not None]
        parameters = [p for layer in own for p in layer.parameters()]
        inputs = differentiable(entered)
        found = torch.autograd.grad(
            [ends[n] for n in reached],
            [*parameters, *inputs, *popped.values()],
            [seeds[n] for n in reached],
            allow_unused=True,
        )
        gradients[:0] = found[: len(parameters)]
        arrived = list(found[len(parameters) : len(parameters) + len(inputs)])
        of_skips |= zip(popped, found[len(parameters) + len(inputs) :], strict=True)
    assert not of_skips
    return Passes(value, gradients + [t for t in arrived if t is not None])


def assert_equal(one: Passes, other: Passes) -> None:
    assert torch.equal(one.output, other.output)
    assert len(one.gradients) == len(other.gradients)
    assert all(map(torch.equal, one.gradients, other.gradients))


def run(layers: Iterable[nn.Module], first: int, x: Tree) -> Any:
    """Run layers, the same dropout in each whoever runs it."""
    for number, layer in enumerate(layers, start=first):
        torch.manual_seed(layer_seed(0, number, 0))
        x = layer(x)
    return x


def leaf(tensor: Tensor) -> Tensor:
    return tensor.detach().requires_grad_()


def popped_by(layers: Sequence[nn.Module]) -> set[str]:
    return {
        layer.full(name) for layer in layers if isinstance(layer, Skippable) for name in layer.pops
    }


def images(rows: int, *size: int) -> Tensor:
    return torch.rand(rows, 3, *size, generator=torch.Generator().manual_seed(1))


BALANCES = {
    "amoebanet": [[border, 12 - border] for border in range(1, 12)] + [[3, 3, 3, 3], [1] * 12],
    "unet": [[border, 22 - border] for border in range(1, 22)]
    + [[5, 6, 6, 5], [1, 1, 3, 8, 9], [1] * 22],
}


@pytest.fixture(scope="module")
def uncut() -> dict[str, tuple[nn.Sequential, Tensor, Passes]]:
    torch.manual_seed(0)
    models = {"amoebanet": amoebanet_d(6, 8, classes=5), "unet": unet(1, 2)}
    inputs = {"amoebanet": images(4, 64, 64), "unet": images(2, 64, 64)}
    return {n: (model, inputs[n], whole(model, inputs[n])) for n, model in models.items()}


@pytest.mark.parametrize(("name", "shape"), [("amoebanet", (4, 5)), ("unet", (2, 1, 64, 64))])
def test_gradients_reach_all_that_is_trained(name: str, shape: Any, uncut: Any) -> None:
    model, x, passes = uncut[name]
    assert passes.output.shape == shape
    assert all(gradient.any() for gradient in passes.gradients)
    assert_equal(whole(copy.deepcopy(model), x), passes)


@pytest.mark.parametrize(
    ("name", "balance"), [(n, b) for n, each in BALANCES.items() for b in each], ids=str
)
def test_cut_anywhere_it_computes_the_same_to_the_bit(
    name: str, balance: list[int], uncut: Any
) -> None:
    model, x, passes = uncut[name]
    assert_equal(cut(model, x, balance), passes)


def test_two_convolutions_a_cell_as_well() -> None:
    torch.manual_seed(0)
    model, x = unet(2, 3), images(1, 64, 96)
    assert_equal(cut(model, x, [12, 10, 11]), whole(model, x))
