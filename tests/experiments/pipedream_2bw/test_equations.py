"""Equations beside trained weights."""

import copy
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import nn

from experiments.pipedream.staleness import SmallTraining
from experiments.pipedream_2bw import equations
from experiments.pipedream_2bw.equations import EqualStages, counted
from experiments.pipedream_2bw.systems import TABLES
from experiments.study.training import bit_equal
from pipekit import oracle, schedules
from pipekit.engine import OptimizerFactory
from pipekit.plans import Recompute

torch.manual_seed(0)
MODEL = nn.Sequential(*(x for _ in range(2) for x in (nn.Linear(6, 6), nn.Tanh())))
DATA = [(torch.randn(8, 6), torch.randn(8, 6)) for _ in range(4)]
SGD = partial(torch.optim.SGD, lr=0.1)
MOMENTUM = partial(equations.Momentum, lr=0.1, beta=0.9)


def against(equation: str, optimizer: OptimizerFactory, width: int) -> equations.Compared:
    schedule = schedules.replicate(schedules.two_bw(2, 2), width)
    return equations.compared(MODEL, DATA, schedule, equation, optimizer)


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


SMALL = EqualStages("GPipe", 2, 4, 1, "always", blocks=2, hidden=8, sequence=4)


def test_the_parts_are_those_of_the_blocks() -> None:
    weights, _, inputs = SMALL.sizes
    assert weights == (12 * 8**2 + 13 * 8) * 4, "a block of 12 h^2 + 13 h parameters"
    assert inputs == 1 * 4 * 8 * 4


@pytest.mark.parametrize("recompute", ["always", "never"])
@pytest.mark.parametrize(
    ("system", "versions", "in_flight"),
    [("inter-layer MP", 1, 1), ("PipeDream-Flush", 1, 2), ("PipeDream-2BW", 2, 2), ("GPipe", 1, 4)],
)
def test_the_formulas_are_the_papers_and_the_accounts_agree(
    system: str, versions: int, in_flight: int, recompute: Recompute
) -> None:
    case = replace(SMALL, system=system, recompute=recompute)
    weights, activations, inputs = case.sizes
    whole = 1 if recompute == "always" else in_flight
    assert case.formula() == versions * weights + whole * activations + in_flight * inputs
    assert counted(case.simulated()) == case.formula()


@pytest.mark.parametrize("system", TABLES)
def test_training_holds_what_the_formulas_say(system: str) -> None:
    case = replace(SMALL, system=system)
    held = case.trained()
    assert counted(held) == pytest.approx(case.formula(), rel=0.01)
    assert max(held.peak_bytes) > counted(held), "gradients come on top"


def test_recomputed_microbatches_keep_one_input_each() -> None:
    for system, in_flight in (("PipeDream-2BW", (2, 1)), ("GPipe", (4, 4))):
        case = replace(SMALL, system=system)
        kept = case.trained().frame.groupby("worker")["activations"].max()
        assert case.in_flight == tuple(kept / case.sizes.inputs) == in_flight
