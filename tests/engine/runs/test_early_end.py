"""A run that ends before its table: all stages then have the weights of the batches before."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import pipekit as pk
from pipekit import schedules
from pipekit.engine import BatchDone, Observer
from pipekit.schedules import Op, Step, Task
from tests.engine.examples import (
    METHODS,
    Batches,
    Trained,
    by_equations,
    data,
    different,
    mixed,
    mlp,
    pipeline,
    trained,
    unlike,
)
from tests.engine.parametrized import TRANSPORTS, first_over_processes
from tests.engine.test_early_stop import RATES
from tests.engine.test_failures import OutOfCheeseError

BALANCE = [1, 1, 1]


class Picky(nn.Module):
    """Fail for rows with a number that is not finite: in the forward, or in the backward."""

    def __init__(self, backward: bool = False) -> None:
        super().__init__()
        self.linear, self.backward = nn.Linear(6, 6), backward

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.linear(x)
        if not x.isfinite().all():
            if not self.backward:
                raise OutOfCheeseError("in the forward")
            y.register_hook(_fail)
        return y


def _fail(gradient: Tensor) -> None:
    raise OutOfCheeseError("in the backward")


def picky(stage: int, backward: bool = False) -> nn.Sequential:
    torch.manual_seed(0)
    layers: list[nn.Module] = [nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 3)]
    one = Picky(backward)
    layers[stage] = nn.Sequential(one, nn.Linear(6, 3)) if stage == 2 else one
    return nn.Sequential(*layers)


def spoilt(batches: int, bad: int, row: int = 5) -> Batches:
    """One row of one batch has a number that is not finite."""
    made = data(batches)
    made[bad][0][row, 0] = float("inf")
    return made


def weights_after(model: nn.Sequential, method: str, batches: Batches, m: int) -> Any:
    truth = by_equations(model, batches, method, BALANCE, m=m)
    return truth.weights[-1] | truth.buffers


FREE = 12


class Gated:
    """Batches of which those behind the first 12 come once the run has been told to stop.

    Where it ends does then not depend on how soon it is told.
    """

    def __init__(self, batches: Batches) -> None:
        self.batches, self.gate = batches, threading.Event()

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[Any]:
        yield from self.batches[:FREE]
        assert self.gate.wait(60), "nobody has stopped the run"
        yield from self.batches[FREE:]

    def stop_at(self, number: int) -> Callable[[BatchDone], bool]:
        """Return an on_batch that stops there; when it is called again, the run knows."""

        def heard(done: BatchDone) -> bool:
            if done.number > number:
                self.gate.set()
            return done.number == number

        return heard


# --- on_batch says stop --------------------------------------------------------------------------


@first_over_processes("method", ["pipedream", "flush", "2bw", "interleaved"])
def test_true_stops_and_all_stages_have_the_weights_of_the_batches_before(
    method: str, transport: str
) -> None:
    stages = 4 if method == "interleaved" else 3
    balance = [2] * 4 if method == "interleaved" else [2, 3, 3]
    pipe = pipeline(mixed(), method, balance, stages=stages, m=4, transport=transport)
    batches = data(200)
    gated = Gated(batches)
    stop, heard = gated.stop_at(4), list[BatchDone]()

    def enough(done: BatchDone) -> bool:
        heard.append(done)
        return stop(done)

    run = pipe.train(gated, on_batch=enough)
    done = len(run.losses)
    assert 5 <= done <= FREE + 1  # those on their way were finished
    truth = by_equations(mixed(), batches[:done], method, balance)
    assert unlike(Trained(run.losses, pipe.state_dict()), truth) == []
    assert len(run.schedule.batches) == done == len(heard)
    assert [each.rows for each in heard] == [8] * done


@TRANSPORTS
def test_after_a_stop_training_goes_on_as_after_a_shorter_call(transport: str) -> None:
    batches = data(60)
    pipe = pipeline(mixed(), "pipedream", [2, 3, 3], transport=transport)
    done = len(pipe.train(batches, on_batch=lambda done: done.number == 2).losses)
    plain = pipeline(mixed(), "pipedream", [2, 3, 3])
    plain.train(batches[:done])
    assert unlike(trained(pipe, batches[:3]), trained(plain, batches[:3])) == []


@first_over_processes("error", [OutOfCheeseError, KeyboardInterrupt])
def test_an_error_of_on_batch_costs_no_weights(error: type[BaseException], transport: str) -> None:
    """It stops the run as True does, and is raised then; nobody is called again."""
    heard = list[int]()

    def fails(done: BatchDone) -> None:
        heard.append(done.number)
        if done.number == 1:
            raise error("in the callback")

    pipe = pipeline(mlp(6, 6, 6, 3), "2bw", BALANCE, transport=transport)
    with pytest.raises(error, match="in the callback"):
        pipe.train(data(9), on_batch=fails)
    assert heard == [0, 1]
    states = [weights_after(mlp(6, 6, 6, 3), "2bw", data(9)[:done], 4) for done in range(2, 10)]
    assert any(different(pipe.state_dict(), each) == [] for each in states)
    pipe.train(data(2))


ALONE: dict[str, tuple[pk.Schedule, list[int], int]] = {
    "the last batch is one worker's": (schedules.pipedream([2, 1]), [1, 1], 2),
    "each batch is one worker's": (schedules.asp(3), [2], 1),
}
"""Schedules, balances, and batches of a round: a worker waits for sums that others alone add to."""


@TRANSPORTS
@pytest.mark.parametrize("name", ALONE)
def test_nobody_waits_for_the_gradients_of_batches_that_do_not_come(
    name: str, transport: str
) -> None:
    """A worker that adds nothing to a sum begins it before anybody knows that the run ends.

    Stages on several workers end where their rounds do.
    """
    schedule, balance, of_a_round = ALONE[name]
    pipe = pipeline(mlp(6, 6, 3), schedule, balance, transport=transport)
    batches = data(15)
    gated = Gated(batches)
    done = len(pipe.train(gated, on_batch=gated.stop_at(4)).losses)
    assert done < 15
    assert done % of_a_round == 0
    plain = pipeline(mlp(6, 6, 3), schedule, balance)
    plain.train(batches[:done])
    assert unlike(trained(pipe, batches[:4]), trained(plain, batches[:4])) == []


# --- errors --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stage", "method", "transport"),
    [
        (0, "pipedream", "threads"),
        (2, "pipedream", "distributed"),
        (2, "flush", "threads"),
        (0, "2bw", "threads"),
    ],
)
def test_an_error_in_a_forward_leaves_the_batches_before(
    stage: int, method: str, transport: str
) -> None:
    """Others may have come to the failed batch, or beyond it, and no update has seen it."""
    m = 4 if METHODS[method].divides else 1
    batches = spoilt(30, bad=7)
    pipe = pipeline(picky(stage), method, BALANCE, m=m, transport=transport)
    with pytest.raises(OutOfCheeseError, match="in the forward"):
        pipe.train(batches)
    assert different(pipe.state_dict(), weights_after(picky(stage), method, batches[:7], m)) == []


class Stream:
    """Claims more batches than it has; then it raises, or ends."""

    def __init__(self, good: int, error: Exception | None) -> None:
        self.good, self.error = good, error

    def __len__(self) -> int:
        return 50

    def __iter__(self) -> Iterator[Any]:
        yield from data(self.good)
        if self.error:
            raise self.error


IN_THE_DATA = OutOfCheeseError("in the data")


@pytest.mark.parametrize(
    ("error", "method", "transport"),
    [
        (IN_THE_DATA, "2bw", "distributed"),
        (IN_THE_DATA, "flush", "threads"),
        (None, "pipedream", "threads"),
        (None, "2bw", "distributed"),
    ],
    ids=str,
)
def test_an_error_in_the_data_leaves_the_batches_before(
    error: Exception | None, method: str, transport: str
) -> None:
    pipe = pipeline(mixed(), method, [2, 3, 3], transport=transport)
    kind, text = (type(error), "in the data") if error else (ValueError, "ended after 5.* 50")
    with pytest.raises(kind, match=text):
        pipe.train(Stream(5, error))
    truth = by_equations(mixed(), data(5), method, [2, 3, 3])
    assert different(pipe.state_dict(), truth.weights[-1] | truth.buffers) == []


def test_what_a_failed_batch_has_added_to_gradients_is_dropped() -> None:
    """Its first microbatches went backward before the third went forward on the last stage."""
    pipe, plain = (pipeline(picky(2), "flush", BALANCE) for _ in range(2))
    with pytest.raises(OutOfCheeseError):
        pipe.train(spoilt(3, bad=1))
    assert pipe.train(data(2)).losses == trained(plain, data(1), data(2)).losses[1:]


@TRANSPORTS
def test_an_error_in_a_backward_leaves_stages_apart_and_says_so(transport: str) -> None:
    pipe = pipeline(picky(0, backward=True), "flush", BALANCE, transport=transport)
    with pytest.raises(OutOfCheeseError, match="in the backward"):
        pipe.train(spoilt(5, bad=2))
    with pytest.raises(RuntimeError, match="build the pipeline again"):
        pipe.state_dict()


def test_an_error_behind_an_update_of_its_round_leaves_stages_apart_and_says_so() -> None:
    """The last stage is updated every batch and the first one every other."""
    table = schedules.parse(RATES)
    updated = threading.Event()

    class LastStage(Observer):
        def after_step(self, worker: int, step: Step) -> None:
            if worker == 1 and step.task == Task(Op.UPDATE, 1, 2, 3):
                updated.set()

    class Last(Picky):
        def forward(self, x: Tensor) -> Tensor:
            if not x.isfinite().all():
                assert updated.wait(60)
            return super().forward(x)

    model = nn.Sequential(Last(), nn.Linear(6, 3))
    pipe = pipeline(model, table, [1, 1])
    with pytest.raises(OutOfCheeseError):
        pipe.train(spoilt(4, bad=3), watch=pk.Watch(observers=[LastStage()]))
    with pytest.raises(RuntimeError, match="build the pipeline again"):
        pipe.state_dict()


# --- checkpoints ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "every", "transport"),
    [
        ("pipedream", 2, "distributed"),
        ("flush", None, "threads"),
        ("2bw", 2, "threads"),
        ("no_stashing", 2, "threads"),
    ],
)
def test_a_run_that_was_stopped_is_taken_up_where_it_ended(
    method: str, every: int | None, transport: str, tmp_path: Path
) -> None:
    """As one that was interrupted: with the older versions that its later batches read.

    Without stashing what they were to read is written over: the run is taken up before its end.
    """
    batches = data(40)
    gated = Gated(batches)
    options: dict[str, Any] = {"checkpoints": pk.Checkpoints(tmp_path, every)}
    pipe = pipeline(mixed(), method, [2, 3, 3], transport=transport)
    done = len(pipe.train(gated, on_batch=gated.stop_at(4), **options).losses)
    assert done < 40
    again = pipeline(mixed(), method, [2, 3, 3], transport=transport)
    assert again.resume(tmp_path) == 0
    if method != "no_stashing":
        assert different(again.state_dict(), pipe.state_dict()) == []
    heard: list[int] = []
    run = again.train(batches, on_batch=lambda done: heard.append(done.number), **options)
    assert heard == list(range(heard[0], 40))
    assert heard[0] == done if method != "no_stashing" else 0 < heard[0] <= done
    truth = by_equations(mixed(), batches, method, [2, 3, 3])
    assert unlike(Trained(run.losses, again.state_dict()), truth) == []
