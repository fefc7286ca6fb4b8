"""The optimizer's state goes with the parameters, whatever stages they are in."""

import copy
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import Optimizer

from pipekit.engine.updates.optimizer_state import NamedOptimizer
from tests.engine.examples import OPTIMIZERS, mlp

NAMES = ["0.weight", "0.bias", "1.weight", "1.bias"]


def named(
    optimizer: Optimizer, parameters: list[nn.Parameter], names: list[str] = NAMES
) -> NamedOptimizer:
    return NamedOptimizer(optimizer, {p: [name] for p, name in zip(parameters, names, strict=True)})


def stepped(optimizer: Optimizer, parameters: list[nn.Parameter], seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for p in parameters:
        p.grad = torch.randn(p.shape, generator=generator)
    optimizer.step()


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_one_optimizer_goes_on_as_two(kind: str) -> None:
    """Split after some steps, with a rate that has changed, the next step has the same bits."""
    whole, split = (list(mlp(6, 6, 3).parameters()) for _ in range(2))
    optimizer = OPTIMIZERS[kind](whole)
    for seed in (1, 2):
        stepped(optimizer, whole, seed)
    optimizer.param_groups[0]["lr"] *= 0.5
    saved = copy.deepcopy(named(optimizer, whole, NAMES).state_dict())
    with torch.no_grad():
        for mine, theirs in zip(split, whole, strict=True):
            mine.copy_(theirs)
    halves = [OPTIMIZERS[kind](split[:2]), OPTIMIZERS[kind](split[2:])]
    stepped(optimizer, whole, 3)
    for mine, theirs in zip(split, whole, strict=True):
        assert theirs.grad is not None
        mine.grad = theirs.grad.clone()
    for half, part, names in zip(
        halves, (split[:2], split[2:]), (NAMES[:2], NAMES[2:]), strict=True
    ):
        named(half, part, names).load_state_dict(saved)
        half.step()
    assert all(map(torch.equal, split, whole))


def test_groups_keep_their_options() -> None:
    def grouped(parameters: list[nn.Parameter]) -> Optimizer:
        biases = [p for p in parameters if p.dim() == 1]
        weights = [p for p in parameters if p.dim() > 1]
        groups: list[dict[str, Any]] = [{"params": biases}, {"params": weights, "lr": 0.5}]
        return torch.optim.SGD(groups, lr=0.1)

    parameters = list(mlp(6, 6, 3).parameters())
    first = grouped(parameters)
    first.param_groups[1]["lr"] = 0.25
    second = grouped(parameters)
    named(second, parameters).load_state_dict(named(first, parameters).state_dict())
    assert [group["lr"] for group in second.param_groups] == [0.1, 0.25]
    assert [group["params"] for group in second.param_groups] == [parameters[1::2], parameters[::2]]


def test_a_state_that_does_not_fit() -> None:
    parameters = list(mlp(6, 6, 3).parameters())
    saved = named(torch.optim.Adam(parameters), parameters).state_dict()
    mine = named(torch.optim.SGD(parameters, lr=0.1), parameters)
    with pytest.raises(ValueError, match="resume with the optimizer and the lr_scheduler"):
        mine.load_state_dict(saved)
