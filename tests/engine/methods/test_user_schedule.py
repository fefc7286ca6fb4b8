"""A user's own function is a method: proved, trained with on both transports, and traced."""

import pytest
import torch
from torch import nn

import pipekit as pk
from pipekit.schedules import Op, Schedule, Task, check
from tests.engine.examples import (
    OPTIMIZERS,
    by_equations,
    data,
    different,
    mixed,
    mlp,
    pipeline,
    sgd,
)
from tests.engine.parametrized import TRANSPORTS


def reversed_gpipe() -> Schedule:
    """GPipe with the backwards from the last microbatch to the first (GPipe, Figure 2c)."""

    def worker(stage: int) -> tuple[Task, ...]:
        forwards = [Task(Op.FORWARD, stage, k, 0) for k in range(4)]
        backwards = [Task(Op.BACKWARD, stage, k, 0) for k in reversed(range(4))]
        return (*forwards, *backwards, Task(Op.UPDATE, stage, 3, 1))

    return Schedule(tuple(map(worker, range(3))), "reversed GPipe").repeat()


@TRANSPORTS
def test_reversed_backwards(transport: str) -> None:
    """The same gradients, summed in another order: close, not equal."""
    check(reversed_gpipe())
    batches, balance = data(3, rows=10), [2, 3, 3]
    pipe = pipeline(mixed(), reversed_gpipe(), balance, transport=transport)
    run = pipe.train(batches)
    truth = by_equations(mixed(), batches, "gpipe", balance)
    assert run.losses == pytest.approx(truth.losses, rel=1e-5)
    state = pipe.state_dict()
    for name, expected in (truth.weights[-1] | truth.buffers).items():
        torch.testing.assert_close(state[name], expected, rtol=1e-4, atol=1e-6)
    own = run.trace.frame[run.trace.frame["worker"] == 1]
    backwards = own[own["op"] == "BACKWARD"]["microbatch"].tolist()
    assert backwards == [3, 2, 1, 0, 7, 6, 5, 4, 11, 10, 9, 8]


def test_reversed_backwards_sum_from_the_last() -> None:
    """Bit for bit: the oracle's sum over the microbatches in reverse."""
    x, y = data(1)[0]
    pipe = pipeline(mlp(6, 6, 6, 3), reversed_gpipe(), [1, 1, 1], optimizer=sgd)
    pipe.train([(x, y)])
    model = mlp(6, 6, 6, 3)
    outputs = [model(part) for part in x.tensor_split(4)]
    for output, part in reversed(list(zip(outputs, y.tensor_split(4), strict=True))):
        torch.autograd.backward(nn.MSELoss()(output, part) * 0.25)
    OPTIMIZERS["sgd"](list(model.parameters())).step()
    assert different(pipe.state_dict(), dict(model.state_dict())) == []


def test_a_picture_trains() -> None:
    """A schedule drawn by hand: 1F1B on two stages."""
    schedule = pk.schedules.parse("""
        worker 0 | F0 F1 .  B0 -  B1 -^
        worker 1 | .  F0 B0 -  F1 B1 -^
        """)
    pipe = pipeline(mixed(), schedule, [4, 4])
    run = pipe.train(data(1))
    assert run.losses == by_equations(mixed(), data(1), "gpipe", [4, 4], m=2).losses


def test_a_schedule_that_deadlocks_is_refused() -> None:
    first, middle, last = reversed_gpipe().period
    tasks = list(middle)
    tasks[0], tasks[4] = tasks[4], tasks[0]
    wrong = Schedule((first, tuple(tasks), last))
    for schedule in (wrong, wrong.repeat()):
        with pytest.raises(pk.ScheduleError, match="B3 of stage 1"):
            pipeline(mixed(), schedule, [2, 3, 3])


def mixed_versions() -> Schedule:
    """Batches of two microbatches, of which the first reads the older weights."""
    F, B, U = Op.FORWARD, Op.BACKWARD, Op.UPDATE
    return Schedule(
        (
            (
                Task(F, 0, 0, 0), Task(F, 0, 1, 0), Task(F, 0, 2, 0),
                Task(B, 0, 0, 0), Task(B, 0, 1, 0), Task(U, 0, 1, 1),
                Task(F, 0, 3, 1), Task(B, 0, 2, 0), Task(B, 0, 3, 1), Task(U, 0, 3, 2),
            ),
        ),
        "mixed versions",
    )  # fmt: skip


def test_an_update_may_sum_gradients_of_several_versions() -> None:
    batches = data(2)
    pipe = pipeline(mlp(6, 3), mixed_versions(), [1], optimizer=sgd)
    run = pipe.train(batches)
    assert run.weight_slots == (2,)
    old, new = mlp(6, 3), mlp(6, 3)
    stepper = sgd(list(new.parameters()))
    for model, parts in ((new, [(0, 0), (0, 1)]), (old, [(1, 0)]), (new, [(1, 1)])):
        for batch, half in parts:
            x, y = (t.tensor_split(2)[half] for t in batches[batch])
            torch.autograd.backward(nn.MSELoss()(model(x), y) * 0.5)
        if model is new and parts[0][0] == 0:
            stepper.step()
            stepper.zero_grad()
    for a, b in zip(new.parameters(), old.parameters(), strict=True):
        assert a.grad is not None
        assert b.grad is not None
        a.grad += b.grad
    stepper.step()
    state = pipe.state_dict()
    for name, expected in new.state_dict().items():
        torch.testing.assert_close(state[name], expected)
