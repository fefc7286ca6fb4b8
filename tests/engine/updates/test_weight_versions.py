"""Weight versions: optimizer steps from buffer to buffer are those of one model."""

from typing import Any, ClassVar

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.optim.lr_scheduler import StepLR

from pipekit.engine.updates.weight_versions import WeightVersions
from tests.engine.examples import OPTIMIZERS, data, mlp, pipeline


def backward(module: nn.Module, x: Tensor) -> None:
    torch.autograd.backward(module(x).square().mean())


@settings(max_examples=6)
@given(buffers=st.lists(st.integers(0, 2), min_size=1, max_size=8))
@pytest.mark.parametrize("name", ["nesterov", "amsgrad", "rprop"])
def test_updates_from_buffer_to_buffer_are_an_ordinary_loop(name: str, buffers: list[int]) -> None:
    """Each update reads its gradient at the newest version and writes any buffer."""
    versions = WeightVersions(mlp(6, 4, 3), OPTIMIZERS[name], lambda o: StepLR(o, 2, 0.5))
    versions.prepare(3)
    model = mlp(6, 4, 3)
    optimizer = OPTIMIZERS[name](list(model.parameters()))
    scheduler = StepLR(optimizer, 2, 0.5)
    newest = 0
    for number, (buffer, (x, _)) in enumerate(
        zip(buffers, data(len(buffers)), strict=True), start=1
    ):
        versions.accumulate(newest, number)
        backward(versions.modules[newest], x)
        versions.update(buffer, versions.gradients(number))
        newest = buffer
        optimizer.zero_grad()
        backward(model, x)
        optimizer.step()
        scheduler.step()
        for got, expected in zip(versions.newest.parameters(), model.parameters(), strict=True):
            assert torch.equal(got, expected)
            assert got.grad is None
    assert versions.newest is versions.modules[newest]


def test_frozen_parameters_and_buffers_are_shared_trained_ones_are_not() -> None:
    layers = nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6))
    layers.get_parameter("0.weight").requires_grad_(False)
    versions = WeightVersions(layers, OPTIMIZERS["sgd"], None)
    versions.prepare(3)
    assert versions.trained == 3
    places = [
        {name: t.data_ptr() for name, t in module.state_dict().items()}
        for module in versions.modules
    ]
    for name in places[0]:
        shared = name == "0.weight" or "running" in name or "num" in name
        assert len({place[name] for place in places}) == (1 if shared else 3), name


# --- No edit under a pending backward ------------------------------------------------------------


class Recall(torch.autograd.Function):
    """Multiply by weights; in the backward, tell whether they are still those of the forward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.weight, ctx.copy = weight.detach(), weight.detach().clone()
        return x * weight

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        Witness.unchanged.append(torch.equal(ctx.weight, ctx.copy))
        return gradient * ctx.weight, (gradient * 0.3).sum(0)


class Witness(nn.Module):
    unchanged: ClassVar[list[bool]] = []

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(6))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = Recall.apply(x, self.weight)
        return y


@pytest.mark.parametrize("method", ["flush", "pipedream", "vertical_sync", "2bw", "no_stashing"])
def test_weights_are_not_edited_while_a_backward_is_pending(method: str) -> None:
    """But without stashing they are: that is the error that stashing mends."""
    Witness.unchanged.clear()
    pipeline(
        nn.Sequential(Witness(), Witness(), nn.Sequential(Witness(), nn.Linear(6, 3))),
        method,
        [1, 1, 1],
        optimizer=OPTIMIZERS["sgd"],
    ).train(data(6))
    assert len(Witness.unchanged) == 3 * 6 * (4 if method in ("flush", "2bw") else 1)
    assert all(Witness.unchanged) == (method != "no_stashing")
