"""Passes of a model cut into stages by hand, and of the whole one, to be compared to the bit."""

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from pipekit.layers.randomness import layer_seed
from pipekit.layers.skips import Skippable, carrying
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
