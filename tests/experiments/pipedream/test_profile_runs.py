"""Profile runs: what a layer takes from minibatch to minibatch."""

import time

import pytest
import torch
from torch import nn

from experiments.pipedream import profile_runs
from experiments.pipedream.profile_runs import SAME
from pipekit.models import image_mlp


class Clock:
    """A clock that layers move on."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


class Slow(nn.Module):
    """Takes so many seconds of a clock forward and backward."""

    def __init__(self, clock: Clock, forward_s: float, backward_s: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))
        self.clock, self.forward_s, self.backward_s = clock, forward_s, backward_s

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.clock.now += self.forward_s
        y = x * self.weight
        y.register_hook(lambda _: setattr(self.clock, "now", self.clock.now + self.backward_s))
        return y


def test_a_minibatch_times_every_layer_and_a_product(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, took = Clock(), iter([9.0, 2.0])  # the first of two products warms up

    def product(a: torch.Tensor, b: torch.Tensor) -> None:
        clock.now += next(took)

    monkeypatch.setattr(time, "process_time", clock)
    monkeypatch.setattr(torch, "mm", product)
    model = nn.Sequential(Slow(clock, 0.25, 0.5), Slow(clock, 1, 3))
    found = profile_runs.minibatch(model, torch.rand(4, 2))
    assert found == {"0 Slow": 0.75, "1 Slow": 4, SAME: 2}


@pytest.mark.long
def test_two_workers_profile_the_same_layers() -> None:
    one, other = profile_runs.pair_of_runs(image_mlp, torch.rand(4, 1, 28, 28), minibatches=3)
    assert len(one) == len(other) == 3
    assert list(one) == list(other)
    assert list(one)[-1] == SAME
    assert (one > 0).to_numpy().all()
