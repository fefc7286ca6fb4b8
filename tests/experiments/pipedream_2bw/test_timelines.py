"""Figures in closed form, and equations beside trained weights."""

import copy
from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from experiments.pipedream_2bw import timelines
from experiments.study.differences import bit_equal
from pipekit import oracle, schedules
from pipekit.engine import OptimizerFactory
from pipekit.traces import Trace


@given(st.integers(1, 6), st.integers(0, 6))
def test_the_closed_forms_are_the_tables_slots(depth: int, more: int) -> None:
    m = depth + more
    for closed, table in (
        (timelines.gpipe_starts(depth, m), schedules.gpipe(depth, m).take(1)),
        (timelines.one_f_one_b_starts(depth, 2 * m), schedules.two_bw(depth, m).take(2)),
        (timelines.one_f_one_b_starts(depth, 2 * m), schedules.pipedream(depth).take(2 * m)),
    ):
        passes = Trace.from_schedule(table).passes.set_index(["op", "stage", "microbatch"])
        assert passes["start_s"].to_dict() == closed


def test_input_7_is_on_worker_3_at_21() -> None:
    """Section 3.1, counted from 1."""
    assert timelines.one_f_one_b_starts(4, 8)["FORWARD", 2, 6] == 21 - 1


def test_versions_read_as_the_ledger_lists_them() -> None:
    assert [timelines.version_read(k, 4) for k in range(1, 17)] == [0] * 8 + [1] * 4 + [2] * 4


@pytest.mark.parametrize("depth", [2, 3, 4, 6])
def test_too_few_microbatches_read_versions_that_are_not_there(depth: int) -> None:
    for m in range(1, depth - 1):
        with pytest.raises(schedules.ScheduleError):
            schedules.check(timelines.unguarded(depth, m, 5))
    for m in range(max(1, depth - 1), depth + 3):
        schedules.check(timelines.unguarded(depth, m, 5))


def test_unguarded_is_2bw_where_2bw_is_allowed() -> None:
    assert timelines.unguarded(3, 4, 3).workers == schedules.two_bw(3, 4).take(3).workers


torch.manual_seed(0)
MODEL = nn.Sequential(*(x for _ in range(2) for x in (nn.Linear(6, 6), nn.Tanh())))
DATA = [(torch.randn(8, 6), torch.randn(8, 6)) for _ in range(4)]
SGD = partial(torch.optim.SGD, lr=0.1)
MOMENTUM = partial(timelines.Momentum, lr=0.1, beta=0.9)


def against(equation: str, optimizer: OptimizerFactory, width: int) -> timelines.Compared:
    table = schedules.two_bw(2, 2)
    return timelines.compared(MODEL, DATA, table, equation, [2, 2], 2, optimizer, width=width)


@pytest.mark.parametrize("width", [1, 2])
@pytest.mark.parametrize(("optimizer", "states"), [(SGD, 0), (MOMENTUM, 1)])
def test_2bw_trains_by_its_equation_and_by_no_other(
    optimizer: OptimizerFactory, states: float, width: int
) -> None:
    ours, vanilla = (against(each, optimizer, width) for each in ("2bw", "sequential"))
    assert (ours.difference, ours.losses_equal, ours.states) == (0.0, True, states)
    assert vanilla.difference > 1e-6
    assert not vanilla.losses_equal


def test_parallel_pipelines_exchange_gradients_of_weights_alone() -> None:
    across, weights = timelines.crossing_bytes(against("2bw", SGD, 2).run, 2).values()
    assert (across, weights) == (0, 2 * sum(p.nbytes for p in MODEL.parameters()) * len(DATA))


def test_activations_that_leave_their_pipeline_would_be_seen() -> None:
    across, _ = timelines.crossing_bytes(against("2bw", SGD, 1).run, 2).values()
    assert across > 0  # as if the two stages were two pipelines


@pytest.mark.parametrize(("equation", "delay"), [("sequential", 0), ("2bw", 1)])
def test_equations_by_hand_are_the_oracles(equation: str, delay: int) -> None:
    model, data = copy.deepcopy(MODEL).double(), [(x.double(), y.double()) for x, y in DATA]
    how = {"balance": [2, 2], "optimizer": SGD, "loss": nn.MSELoss()}
    judge = oracle.train(model, data, method=equation, **how)  # type: ignore[arg-type]
    hand = timelines.by_hand(model, data, delay, lr=0.1)
    assert all(bit_equal(a, b) for a, b in zip(hand, judge.weights, strict=True))


def test_momentum_is_as_printed() -> None:
    weight = nn.Parameter(torch.zeros(1))
    optimizer = timelines.Momentum([weight], lr=0.5, beta=0.75)
    seen = []
    for _ in range(2):
        weight.grad = torch.ones(1)
        optimizer.step()
        seen.append(float(weight.detach()))
    assert seen == [-0.125, -0.125 - 0.5 * (0.75 * 0.25 + 0.25)]
