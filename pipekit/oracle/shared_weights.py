"""Weights that layers of several stages share: a copy on each stage, one gradient.

Each copy has the versions which its stage reads.  The gradient of a microbatch is summed over all
uses as backpropagation comes to them, from the last to the first, as in the unsplit model.  Then it
is summed like any other of the first of these stages; in a norm it counts once.
"""

import copy
from collections import OrderedDict, defaultdict
from collections.abc import Sequence
from itertools import chain, islice, pairwise
from typing import Any

import torch
from torch import Tensor, nn

from pipekit.trees import leaves, refill

Copied = tuple[nn.Parameter, nn.Parameter]  # a stage's copy, and the next one's that has it too


def with_copies(model: nn.Sequential, balance: Sequence[int]) -> nn.Sequential:
    """Return a copy of a model in which every stage has parameters of its own."""
    layers = iter(model._modules.items())
    stages = [copy.deepcopy(list(islice(layers, length))) for length in balance]
    return nn.Sequential(OrderedDict(chain.from_iterable(stages)))


def stage_parameters(model: nn.Sequential, balance: Sequence[int]) -> list[dict[str, nn.Parameter]]:
    """Return each stage's parameters by their names in the unsplit model."""
    layers = iter(model)
    stages = []
    for length in balance:
        own = {id(p) for _ in range(length) for p in next(layers).parameters()}
        stages.append({name: p for name, p in model.named_parameters() if id(p) in own})
    return stages


def copies_of(unsplit: nn.Sequential, model: nn.Sequential) -> list[list[nn.Parameter]]:
    """Return the copies that the stages have, in order, of each of the unsplit's parameters."""
    found: dict[nn.Parameter, dict[nn.Parameter, None]] = defaultdict(dict)
    for name, parameter in unsplit.named_parameters(remove_duplicate=False):
        found[parameter][model.get_parameter(name)] = None
    return [list(copies) for copies in found.values()]


def shared_by_stages(
    model: nn.Sequential, balance: Sequence[int], copies: Sequence[Sequence[nn.Parameter]]
) -> dict[int, list[Copied]]:
    """Return by the last layer of each stage those of its weights that a later one has as well."""
    stages = stage_parameters(model, balance)
    found: dict[int, list[Copied]] = defaultdict(list)
    for early, late in chain.from_iterable(map(pairwise, copies)):
        (stage,) = [s for s, own in enumerate(stages) if any(early is p for p in own.values())]
        if early.requires_grad:
            found[sum(balance[: stage + 1]) - 1].append((early, late))
    return found


def begin_backward(output: Any, shared: list[Copied]) -> Any:
    """Return a stage's output, at whose backward the stage gets what later ones have added up."""
    tensors = leaves(output)
    reached = [number for number, tensor in enumerate(tensors) if tensor.requires_grad]
    if reached:
        weights = [early for early, _ in shared]
        begun = _BeginBackward.apply(shared, *weights, *(tensors[n] for n in reached))
        for number, tensor in zip(reached, begun, strict=True):
            tensors[number] = tensor
    return refill(output, tensors)


class _BeginBackward(torch.autograd.Function):
    """The first node of a stage's backward: what it gives comes before the stage's own uses'."""

    @staticmethod
    def forward(ctx: Any, shared: list[Copied], *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.shared = shared
        ctx.set_materialize_grads(False)
        return tuple(tensor.clone() for tensor in tensors[len(shared) :])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Any, ...]:
        added_up = [late.grad for _, late in ctx.shared]
        for _, late in ctx.shared:
            late.grad = None
        return (None, *added_up, *gradients)


def pass_to_first(copies: Sequence[Sequence[nn.Parameter]]) -> None:
    """Add what no backward of an earlier stage has begun with, since its output had no gradient."""
    for same in copies:
        for late, early in pairwise(reversed(same)):
            if late.grad is not None:
                early.grad = late.grad if early.grad is None else late.grad + early.grad
                late.grad = None


def give_to_all(copies: Sequence[Sequence[nn.Parameter]]) -> None:
    """Give all copies of a parameter the gradient of the first one."""
    for first, *others in copies:
        for other in others:
            other.grad = first.grad
