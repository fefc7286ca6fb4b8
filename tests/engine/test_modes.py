"""Modules that the plain loop trains in evaluation mode stay in it, say frozen batch norms."""

import copy
import warnings
from collections.abc import Iterator
from functools import partial
from typing import Self

import pytest
import torch
from torch import Tensor, nn

import pipekit as pk
from pipekit import schedules
from tests.engine.examples import pipeline
from tests.people.plain import plain_loop

BATCHES = [(x, x.flip(1)) for x in torch.linspace(-1, 2, 72).view(3, 6, 4).sin()]
OPTIMIZER = partial(torch.optim.SGD, lr=0.1)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)) for _ in range(3)
        )

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = x + block(x)
        return x

    def norms(self) -> Iterator[nn.Module]:
        return (each for each in self.modules() if isinstance(each, nn.BatchNorm1d))


class Freezing(Net):
    """Freezes its norms by a ``train()`` of its own, which no stage has."""

    def train(self, mode: bool = True) -> Self:
        super().train(mode)
        for norm in self.norms():
            norm.eval()
        return self


def frozen() -> Net:
    net = Net()
    for norm in net.norms():
        norm.eval()
    return net


def in_evaluation() -> Net:
    return Net().eval()


def plain(model: nn.Module, train: bool) -> dict[str, Tensor]:
    if train:
        model.train()
    plain_loop(model, OPTIMIZER, nn.functional.mse_loss, BATCHES * 2)
    return model.state_dict()


def layers_of(model: nn.Module, way: str) -> nn.Sequential:
    if way != "layers":
        return pk.stages(model, BATCHES[0][0])
    return nn.Sequential(*(layer for block in model.blocks for layer in block))  # type: ignore


@pytest.mark.filterwarnings("ignore:3 of the model's modules", "ignore:the model is in evaluation")
@pytest.mark.parametrize(
    ("make", "way"),
    [
        (Freezing, "record"),
        (frozen, "record"),
        (frozen, "layers"),
        (in_evaluation, "record"),
        (in_evaluation, "layers"),
    ],
)
def test_training_is_the_plain_loops_also_after_an_evaluation(make: type[Net], way: str) -> None:
    layers = layers_of(make(), way)
    model = copy.deepcopy(layers) if way == "layers" else make()
    expected = plain(model, train=make is not frozen)
    pipe = pipeline(layers, schedules.flush(2, 1), optimizer=OPTIMIZER)
    pipe.train(BATCHES)
    pipe.evaluate(BATCHES)
    pipe.train(BATCHES)
    state = pipe.state_dict()
    assert all(torch.equal(state[name], tensor) for name, tensor in expected.items())


def test_copies_of_weights_and_other_processes_know_of_it() -> None:
    layers = pk.stages(Freezing(), BATCHES[0][0])
    pipe = pipeline(layers, schedules.two_bw(2, 2), transport="distributed")
    pipe.train(BATCHES)
    state = pipe.state_dict()
    pipe.close()
    assert all(state[name].eq(0).all() for name in state if "running_mean" in name)


def test_what_somebody_has_put_into_evaluation_mode_is_told_of() -> None:
    with pytest.warns(UserWarning, match=r"3 of the model's modules .*BatchNorm1d.*\.train\(\)"):
        pipeline(layers_of(frozen(), "layers"), schedules.flush(2, 1))
    with warnings.catch_warnings(action="error"):  # the model's own train() does it
        pipeline(nn.Sequential(Freezing().train(), nn.Identity()), schedules.flush(2, 1))


def test_modes_are_left_as_they_were() -> None:
    net = frozen()
    pk.stages(net, BATCHES[0][0])
    assert {each for each in net.modules() if not each.training} == set(net.norms())
