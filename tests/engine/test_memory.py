"""Bytes measured on the running engine: against what they must be, and against the simulation."""

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import nn

from pipekit import Pipeline, Plan, Profile, models, schedules, simulate
from pipekit.clusters.papers import V100
from pipekit.engine.versions import OptimizerFactory
from pipekit.memory import Memory
from pipekit.plans import Recompute
from pipekit.schedules import Schedule

ROWS, M, BATCHES = 8, 4, 3
METHODS: dict[str, Callable[[int, int], Schedule]] = {
    "gpipe": lambda stages, n: schedules.gpipe(stages, M, n),
    "flush": lambda stages, n: schedules.flush(stages, M, n),
    "pipedream": schedules.pipedream,
    "2bw": lambda stages, n: schedules.two_bw(stages, M, n),
}
OPTIMIZERS: dict[int, OptimizerFactory] = {
    0: partial(torch.optim.SGD, lr=0.01),
    1: partial(torch.optim.SGD, lr=0.01, momentum=0.9),
    2: torch.optim.Adam,
}


def measured(
    model: nn.Sequential, balance: list[int], method: str, recompute: Recompute, states: int
) -> Memory:
    make = METHODS[method]
    parts = M if method != "pipedream" else 1
    pipe = Pipeline(
        model,
        partial(make, len(balance)),
        balance=balance,
        optimizer=OPTIMIZERS[states],
        loss=nn.CrossEntropyLoss(),
        recompute=recompute,
    )
    images = torch.rand(ROWS * parts, 1, 28, 28)
    batch = (images, torch.randint(10, (ROWS * parts,)))
    trace = pipe.train([batch] * BATCHES, memory=True).trace
    assert trace.memory is not None
    assert trace.memory.label == "measured"
    return trace.memory


@pytest.mark.parametrize(
    ("method", "recompute", "states"),
    [  # a Latin square: every pair of the three
        (method, recompute, (row + column) % len(OPTIMIZERS))
        for row, method in enumerate(METHODS)
        for column, recompute in enumerate(("never", "except_last", "always"))
    ],
)
def test_the_simulation_predicts_the_peak_within_5_percent(
    method: str, recompute: Recompute, states: int
) -> None:
    model = models.convnet()
    balance = [3, len(model) - 3]
    found = measured(model, balance, method, recompute, states)
    costs = Profile.analytic(model, torch.rand(ROWS, 1, 28, 28), V100)
    plan = Plan.by_hand(balance, rows=ROWS, recompute=recompute)
    predicted = simulate(METHODS[method](2, BATCHES), costs, plan, optimizer_states=states).memory
    assert predicted is not None
    for ours, theirs in zip(predicted.peak_bytes, found.peak_bytes, strict=True):
        assert ours == pytest.approx(theirs, rel=0.05)


def test_every_part_is_what_it_must_be() -> None:
    """One stage of a Linear layer, 4 x 4 without bias, rows of 4 numbers: all bytes by hand."""
    pipe = Pipeline(
        nn.Sequential(nn.Linear(4, 4, bias=False)),
        partial(schedules.gpipe, 1, 2),
        optimizer=OPTIMIZERS[1],
        loss=nn.MSELoss(),
    )
    data = [(torch.ones(2 * ROWS, 4), torch.ones(2 * ROWS, 4))] * 2
    memory = pipe.train(data, memory=True).trace.memory
    assert memory is not None
    weight, rows, loss = 4 * 4 * 4, ROWS * 4 * 4, 4
    peak = memory.frame[["weights", "gradients", "optimizer", "recompute"]].max().tolist()
    assert peak == [weight, weight, weight, 0]
    # Of each microbatch the layer's input, its output and the target, which the loss needs, and
    # the loss.
    assert memory.frame["activations"].max() == 2 * (3 * rows + loss)


def test_all_is_given_back_and_nothing_followed_unless_asked() -> None:
    pipe = Pipeline(
        nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)),
        partial(schedules.flush, 2, 2),
        balance=[1, 1],
        optimizer=OPTIMIZERS[0],
        loss=nn.MSELoss(),
    )
    data = [(torch.ones(4, 4), torch.ones(4, 4))]
    memory = pipe.train(data, memory=True).trace.memory
    assert memory is not None
    assert memory.frame.groupby("worker")[["gradients", "activations"]].last().eq(0).all(axis=None)
    assert pipe.train(data).trace.memory is None


def test_processes_report_the_same_bytes_as_threads() -> None:
    def peaks(transport: str) -> tuple[int, ...]:
        pipe = Pipeline(
            nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)),
            partial(schedules.two_bw, 2, 2),
            balance=[1, 1],
            optimizer=OPTIMIZERS[2],
            loss=nn.MSELoss(),
            transport=transport,
        )
        memory = pipe.train([(torch.ones(4, 4), torch.ones(4, 4))] * 3, memory=True).trace.memory
        assert memory is not None
        return memory.peak_bytes

    assert peaks("threads")[0] == peaks("distributed")[0]
