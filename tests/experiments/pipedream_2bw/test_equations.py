"""Equations beside trained weights."""

import copy
from functools import partial

import pytest
import torch
from torch import nn

from experiments.pipedream.staleness import SmallTraining
from experiments.pipedream_2bw import equations
from experiments.study.differences import bit_equal
from pipekit import oracle, schedules
from pipekit.engine import OptimizerFactory

torch.manual_seed(0)
MODEL = nn.Sequential(*(x for _ in range(2) for x in (nn.Linear(6, 6), nn.Tanh())))
DATA = [(torch.randn(8, 6), torch.randn(8, 6)) for _ in range(4)]
SGD = partial(torch.optim.SGD, lr=0.1)
MOMENTUM = partial(equations.Momentum, lr=0.1, beta=0.9)


def against(equation: str, optimizer: OptimizerFactory, width: int) -> equations.Compared:
    table = schedules.two_bw(2, 2)
    return equations.compared(MODEL, DATA, table, equation, [2, 2], 2, optimizer, width=width)


@pytest.mark.parametrize("width", [1, 2])
@pytest.mark.parametrize(("optimizer", "states"), [(SGD, 0), (MOMENTUM, 1)])
def test_2bw_trains_by_its_equation_and_by_no_other(
    optimizer: OptimizerFactory, states: float, width: int
) -> None:
    ours, vanilla = (against(each, optimizer, width) for each in ("2bw", "sequential"))
    assert (ours.difference, ours.losses_equal, ours.states) == (0.0, True, states)
    assert vanilla.difference > 1e-6
    assert not vanilla.losses_equal


@pytest.mark.parametrize(("equation", "delay"), [("sequential", 0), ("2bw", 1)])
def test_equations_by_hand_are_the_oracles(equation: str, delay: int) -> None:
    model, data = copy.deepcopy(MODEL).double(), [(x.double(), y.double()) for x, y in DATA]
    how = {"balance": [2, 2], "optimizer": SGD, "loss": nn.MSELoss()}
    judge = oracle.train(model, data, method=equation, **how)  # type: ignore[arg-type]
    hand = SmallTraining(model, data, 0.1).replayed([delay] * 2)
    assert all(bit_equal(a, b) for a, b in zip(hand, judge.weights, strict=True))


def test_momentum_is_as_printed() -> None:
    weight = nn.Parameter(torch.zeros(1))
    optimizer = equations.Momentum([weight], lr=0.5, beta=0.75)
    seen = []
    for _ in range(2):
        weight.grad = torch.ones(1)
        optimizer.step()
        seen.append(float(weight.detach()))
    assert seen == [-0.125, -0.125 - 0.5 * (0.75 * 0.25 + 0.25)]
