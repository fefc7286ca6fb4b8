"""Weights that stages share: their gradient is summed as in a plain loop, to the bit."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pipekit import PipelinedModule


def tied(frozen: bool = False) -> nn.Sequential:
    """Return layers of which the first, the third and the last have one weight."""
    torch.manual_seed(0)
    layers = [nn.Linear(6, 6) for _ in range(5)]
    for layer in (layers[2], layers[4]):
        layer.weight = layers[0].weight
    layers[1].weight.requires_grad_(not frozen)
    return nn.Sequential(layers[0], nn.Tanh(), layers[1], layers[2], nn.Tanh(), *layers[3:])


def plain_gradients(model: nn.Module, x: Tensor, chunks: int) -> list[Tensor | None]:
    """Return what a loop over microbatches adds up, which begins with the last one."""
    for microbatch in reversed(x.split(len(x) // chunks)):
        (model(microbatch).square().sum() / x.numel()).backward()
    return [parameter.grad for parameter in model.parameters()]


def different(model: nn.Module, expected: list[Tensor | None]) -> list[str]:
    return [
        name
        for (name, parameter), wanted in zip(model.named_parameters(), expected, strict=True)
        if (parameter.grad is None) != (wanted is None)
        or (wanted is not None and not torch.equal(parameter.grad, wanted))  # type: ignore[arg-type]
    ]


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("checkpoint", ["never", "always"])
@pytest.mark.parametrize("balance", [[7], [3, 4], [2, 2, 3], [1, 2, 2, 1, 1]])
def test_gradients_are_a_plain_loops(balance: list[int], checkpoint: Any, frozen: bool) -> None:
    x = torch.randn(12, 6)
    expected = plain_gradients(tied(frozen), x, chunks=4)
    model = PipelinedModule(tied(frozen), balance, chunks=4, checkpoint=checkpoint)
    (model(x).square().sum() / x.numel()).backward()
    assert different(model, expected) == []


def test_what_is_frozen_later_is_shared_no_more() -> None:
    """The places of what is shared are those among the parameters that are trained now."""
    x = torch.randn(12, 6)
    model, plain = PipelinedModule(tied(), [2, 2, 3], chunks=4), tied()
    for each in (model, plain):
        next(iter(each)).bias.requires_grad_(False)
    model(x)  # without a backward
    for layers in (model, plain):
        list(layers)[2].weight.requires_grad_(False)
    expected = plain_gradients(plain, x, chunks=4)
    (model(x).square().sum() / x.numel()).backward()
    assert different(model, expected) == []


def test_evaluation_needs_no_gradients() -> None:
    x = torch.randn(12, 6)
    model = PipelinedModule(tied(), [2, 2, 3], chunks=3).eval()
    with torch.no_grad():
        torch.testing.assert_close(model(x), tied()(x))
