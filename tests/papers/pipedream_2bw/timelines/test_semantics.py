import copy
from functools import partial

import pytest
import torch
from torch import nn

from pipekit import oracle, schedules
from pipekit.engine import OptimizerFactory
from pipekit.papers.pipedream.staleness.study import Study
from pipekit.papers.pipedream_2bw.timelines import semantics
from pipekit.papers.trainings.differences import bit_equal

torch.manual_seed(0)
MODEL = nn.Sequential(*(x for _ in range(2) for x in (nn.Linear(6, 6), nn.Tanh())))
DATA = [(torch.randn(8, 6), torch.randn(8, 6)) for _ in range(4)]
SGD = partial(torch.optim.SGD, lr=0.1)
MOMENTUM = partial(semantics.Momentum, lr=0.1, beta=0.9)


def against(method: str, optimizer: OptimizerFactory, width: int) -> semantics.Compared:
    return semantics.against_equation(
        MODEL, DATA, schedules.two_bw(2, 2), method, [2, 2], 2, optimizer, width=width
    )


@pytest.mark.parametrize("width", [1, 2])
@pytest.mark.parametrize(("optimizer", "states"), [(SGD, 0), (MOMENTUM, 1)])
def test_2bw_trains_by_its_equation_and_by_no_other(
    optimizer: OptimizerFactory, states: float, width: int
) -> None:
    ours, vanilla = (against(method, optimizer, width) for method in ("2bw", "sequential"))
    assert (ours.difference, ours.losses_equal, ours.states) == (0.0, True, states)
    assert vanilla.difference > 1e-6
    assert not vanilla.losses_equal


def test_parallel_pipelines_exchange_gradients_of_weights_alone() -> None:
    across, weights = semantics.crossing_bytes(against("2bw", SGD, 2).run, 2)
    parameters = sum(p.nbytes for p in MODEL.parameters())
    assert (across, weights) == (0, 2 * parameters * len(DATA))


def test_activations_that_leave_their_pipeline_would_be_seen() -> None:
    run = against("2bw", SGD, 1).run
    assert semantics.crossing_bytes(run, 2)[0] > 0  # as if the two stages were two pipelines


@pytest.mark.parametrize(("method", "delay"), [("sequential", 0), ("2bw", 1)])
def test_equations_by_hand_are_the_oracles(method: str, delay: int) -> None:
    model, data = copy.deepcopy(MODEL).double(), [(x.double(), y.double()) for x, y in DATA]
    judge = oracle.train(
        model, data, method=method, balance=[2, 2], optimizer=SGD, loss=nn.MSELoss()
    )
    hand = Study(model, [2, 2], data, nn.MSELoss(), 0.1).replay([delay] * 2)
    assert all(bit_equal(a, b) for a, b in zip(hand, judge.weights, strict=True))


def test_momentum_is_as_printed() -> None:
    weight = nn.Parameter(torch.zeros(1))
    optimizer = semantics.Momentum([weight], lr=0.5, beta=0.75)
    seen = []
    for _ in range(2):
        weight.grad = torch.ones(1)
        optimizer.step()
        seen.append(float(weight.detach()))
    assert seen == [-0.125, -0.125 - 0.5 * (0.75 * 0.25 + 0.25)]


def test_the_engines_microbatches_are_counted() -> None:
    table = schedules.replicate(schedules.two_bw(2, 2).take(1), 2)
    assert semantics.rows_of_microbatches(MODEL, DATA[0], table, [2, 2]) == [2, 2, 2, 2]
