"""Batches without a length, read as they are needed; calls that go on where the last one ended."""

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.optim.lr_scheduler import StepLR

import pipekit as pk
from pipekit import schedules
from pipekit.engine import BatchDone
from tests.engine.examples import (
    METHODS,
    OPTIMIZERS,
    by_equations,
    data,
    different,
    mixed,
    mlp,
    pipeline,
    sgd,
    values,
)

TRANSPORTS = pytest.mark.parametrize("transport", ["threads", "distributed"])
EACH_METHOD = pytest.mark.parametrize("method", ["pipedream", "2bw", "vertical_sync", "flush"])
BALANCE = [2, 3, 3]
SCHEDULED: dict[str, Any] = {
    "optimizer": OPTIMIZERS["adam"],
    "lr_scheduler": lambda o: StepLR(o, 2, 0.5),
}


# --- one call after the other --------------------------------------------------------------------


@TRANSPORTS
@EACH_METHOD
def test_two_calls_with_three_batches_are_one_with_six(method: str, transport: str) -> None:
    """With an evaluation between, which reads the weights that all batches so far have made."""
    batches = data(6)
    pipe = pipeline(mixed(), method, BALANCE, transport=transport, **SCHEDULED)
    first = pipe.train(batches[:3], restart=False)
    three = by_equations(mixed(), batches[:3], method, BALANCE, **SCHEDULED)
    assert different(pipe.state_dict(), three.weights[-1] | three.buffers) == []
    pipe.evaluate(batches)
    second = pipe.train(batches[3:], restart=False)
    six = by_equations(mixed(), batches, method, BALANCE, **SCHEDULED)
    assert first.losses + second.losses == six.losses
    assert different(pipe.state_dict(), six.weights[-1] | six.buffers) == []


@settings(deadline=None, max_examples=10)
@given(st.lists(st.integers(1, 7), min_size=1, max_size=6), st.sampled_from(["pipedream", "2bw"]))
def test_however_the_batches_are_shared_out(parts: list[int], method: str) -> None:
    batches = data(sum(parts))
    pipe = pipeline(mixed(), method, BALANCE)
    losses = []
    for part in parts:
        losses += pipe.train(batches[:part], restart=False, watch=pk.Watch(trace=False)).losses
        batches = batches[part:]
    truth = by_equations(mixed(), data(sum(parts)), method, BALANCE)
    assert losses == truth.losses
    assert different(pipe.state_dict(), truth.weights[-1] | truth.buffers) == []


def test_a_call_that_restarts_begins_with_the_newest_weights_everywhere() -> None:
    batches = data(9)
    pipe, plain = (pipeline(mixed(), "pipedream", BALANCE) for _ in range(2))
    pipe.train(batches[:3], restart=False)
    plain.train(batches[:3])
    assert pipe.train(batches[3:6]).losses == plain.train(batches[3:6]).losses
    assert pipe.train(batches[6:], restart=False).losses == plain.train(batches[6:]).losses
    assert different(pipe.state_dict(), plain.state_dict()) == []


def test_each_call_tells_of_its_own_part_of_the_table() -> None:
    batches, heard = data(6), list[int]()

    def listen(done: BatchDone) -> None:
        heard.append(done.number)

    pipe = pipeline(mixed(), "2bw", BALANCE)
    runs = [pipe.train(b, restart=False, on_batch=listen) for b in (batches[:3], batches[3:])]
    assert heard == [0, 1, 2, 0, 1, 2]
    whole = schedules.two_bw(3, 4).take(6).workers
    parts = zip(*(run.schedule.workers for run in runs), strict=True)
    assert [{*one, *other} for one, other in parts] == [{*tasks} for tasks in whole]
    assert [run.weight_slots for run in runs] == [(2, 2, 2), (2, 2, 2)]


@TRANSPORTS
def test_after_an_error_the_next_call_goes_on_before_it(transport: str) -> None:
    batches = data(7)

    def broken() -> Iterator[Any]:
        yield from batches[:3]
        raise OSError("the disk is gone")

    pipe = pipeline(mixed(), "pipedream", BALANCE, transport=transport)
    with pytest.raises(OSError, match="the disk is gone"):
        pipe.train(broken(), restart=False)
    losses = pipe.train(batches[3:], restart=False).losses
    truth = by_equations(mixed(), batches, "pipedream", BALANCE)
    assert losses == truth.losses[3:]
    assert different(pipe.state_dict(), truth.weights[-1] | truth.buffers) == []


@TRANSPORTS
def test_the_loss_scale_goes_on(transport: str) -> None:
    """Gradients overflow until the scale is small, and again when it has grown."""
    options = {"loss_scale": pk.LossScale(2.0**127, interval=2), "transport": transport}
    batches = data(12)
    whole = pipeline(mixed(), "2bw", BALANCE, **options)
    expected = whole.train(batches)
    pipe = pipeline(mixed(), "2bw", BALANCE, **options)
    runs = []
    for first, stop in ((0, 3), (3, 4), (4, 12)):
        runs.append(pipe.train(batches[first:stop], restart=False))
        pipe.set_learning_rate(pipe.optimizer_state()["0.weight"]["options"]["lr"])  # built anew
    assert 1 < len(expected.skipped_updates) < 11
    assert [loss for run in runs for loss in run.losses] == expected.losses
    assert [scale for run in runs for scale in run.loss_scales] == [*expected.loss_scales]
    starts = zip((0, 3, 4), runs, strict=True)
    skipped = [start + update for start, run in starts for update in run.skipped_updates]
    assert skipped == [*expected.skipped_updates]
    assert different(pipe.state_dict(), whole.state_dict()) == []


def test_a_checkpoint_is_resumed_in_place_of_what_would_go_on(tmp_path: Path) -> None:
    """Neither older weights nor older loss scales of the call before are left."""
    fresh, pipe = (pipeline(mixed(), "2bw", BALANCE, loss_scale="dynamic") for _ in range(2))
    pipeline(mixed(), "2bw", BALANCE, loss_scale="dynamic").train(data(4), checkpoints=tmp_path)
    pipe.train(data(3), restart=False)
    for each in fresh, pipe:
        each.resume(tmp_path)
    assert pipe.train(data(7)).losses == fresh.train(data(7)).losses
    assert different(pipe.state_dict(), fresh.state_dict()) == []


@pytest.mark.parametrize(
    ("options", "arguments", "error", "message"),
    [
        ({}, {"checkpoints": "saved"}, ValueError, "begins with an empty pipeline"),
    ],
)
def test_what_cannot_go_on(
    options: Any, arguments: Any, error: Any, message: str, tmp_path: Path
) -> None:
    if "checkpoints" in arguments:
        arguments = {"checkpoints": tmp_path}
    pipe = pipeline(mlp(6, 6, 3), "2bw", [1, 1], **options)
    with pytest.raises(error, match=message):
        pipe.train(data(2), restart=False, **arguments)


SHARED: dict[str, tuple[pk.Schedule, list[int], list[int]]] = {
    "pipedream": (schedules.pipedream([2, 1]), [1, 2], [2, 4, 6]),
    "pipedream of 2 and 3": (schedules.pipedream([2, 3]), [1, 2], [6, 6]),
    "2bw": (schedules.replicate(schedules.two_bw(2, 2), 2), [1, 2], [1, 3, 2]),
    "flush": (schedules.replicate(schedules.flush(2, 2), 2), [1, 2], [1, 3]),
    "chimera": (schedules.chimera(2, 4), [1, 2], [1, 3]),
    "data parallel": (schedules.replicate(schedules.flush(1, 2), 2), [3], [1, 3]),
    "asp": (schedules.asp(3), [3], [1, 4, 2]),
    "asp, delay": (schedules.asp(2, delay=3), [3], [1, 4, 3]),
}
"""Schedules with stages on several workers, balances, and the batches of calls."""


def shared(name: str, **options: Any) -> pk.Pipeline:
    schedule, balance, _ = SHARED[name]
    how: dict[str, Any] = {"optimizer": OPTIMIZERS["adam"], "loss": nn.MSELoss()} | options
    return pk.Pipeline(mlp(6, 6, 6, 3), schedule, balance=balance, **values(**how))


@pytest.mark.parametrize(
    ("name", "transport"),
    [*((name, "threads") for name in SHARED), ("pipedream", "distributed"), ("2bw", "distributed")],
)
def test_stages_on_several_workers_go_on(name: str, transport: str) -> None:
    parts = SHARED[name][2]
    batches = data(sum(parts))
    whole = shared(name)
    expected = whole.train(batches).losses
    pipe, losses, rest = shared(name, transport=transport), list[float](), iter(batches)
    for part in parts:
        losses += pipe.train([*islice(rest, part)], restart=False).losses
        pipe.evaluate(batches[:1])
    assert losses == expected
    assert different(pipe.state_dict(), whole.state_dict()) == []
    pipe.close()


def test_two_batches_on_the_same_weights_go_on() -> None:
    """The second one's call reads weights that the first one's update has replaced in the list."""
    schedule = schedules.parse("worker 0 | F0 F1:0 B0 B1 ^0 ^1").repeat()
    batches, runs = data(5), []
    for parts in ([5], [1, 1, 3], [2, 3]):
        rest = iter(batches)
        pipe = pk.Pipeline(mlp(6, 3), schedule, balance=[1], optimizer=sgd, loss=nn.MSELoss())
        parted = [pipe.train([*islice(rest, part)], restart=False) for part in parts]
        runs.append(([loss for run in parted for loss in run.losses], dict(pipe.state_dict())))
    for losses, state in runs[1:]:
        assert losses == runs[0][0]
        assert different(state, runs[0][1]) == []


def test_parallel_pipelines_go_on_before_an_error_of_the_data() -> None:
    batches = data(7)

    def broken() -> Iterator[Any]:
        yield from batches[:3]
        raise OSError("the disk is gone")

    pipe, whole = shared("2bw"), shared("2bw")
    with pytest.raises(OSError, match="the disk is gone"):
        pipe.train(broken(), restart=False)
    assert pipe.train(batches[3:], restart=False).losses == whole.train(batches).losses[3:]
    assert different(pipe.state_dict(), whole.state_dict()) == []


def test_clipped_gradients_of_parallel_pipelines_go_on() -> None:
    batches, (whole, pipe) = data(5), (shared("2bw", clip_norm=0.01) for _ in range(2))
    expected = whole.train(batches).losses
    assert [
        loss
        for part in (batches[:2], batches[2:])
        for loss in pipe.train(part, restart=False).losses
    ] == expected
    assert different(pipe.state_dict(), whole.state_dict()) == []


def test_running_statistics_of_replicas_go_on_but_for_the_averages_rounding() -> None:
    """Each call ends with their average over the workers, a long one only once."""
    method = SHARED["2bw"][0]
    whole, pipe = (
        pk.Pipeline(mixed(), method, balance=[3, 5], optimizer=sgd, loss=nn.MSELoss())
        for _ in range(2)
    )
    whole.train(data(5))
    pipe.train(data(5)[:2], restart=False)
    pipe.train(data(5)[2:], restart=False)
    names = ["1.running_mean", "1.running_var"]
    ours, theirs = pipe.state_dict(), whole.state_dict()
    assert {*different(ours, theirs)} <= {*names}
    for name in names:
        torch.testing.assert_close(ours[name], theirs[name], rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(
    ("batches", "given"), [(data(3), 3), (iter(data(4)), "a stream")], ids=["odd", "a stream"]
)
def test_calls_that_end_within_a_round_of_updates_are_refused(batches: Any, given: object) -> None:
    pipe = shared("pipedream")
    with pytest.raises(ValueError, match=f"a multiple of 2 batches, with a length .not {given}"):
        pipe.train(batches, restart=False)
    pipe.train(data(3), steps=2, restart=False)


def test_a_schedule_with_an_end_cannot_go_on() -> None:
    schedule = schedules.two_bw(2, 4).take(2)
    pipe = pk.Pipeline(mlp(6, 6, 6, 3), schedule, balance=[1, 2], optimizer=sgd, loss=nn.MSELoss())
    with pytest.raises(ValueError, match=r"it has an end; .*pass one without end"):
        pipe.train(data(2), restart=False)


# --- streams -------------------------------------------------------------------------------------


class Stream:
    """Never ends, has no length, and counts what is read of it."""

    def __init__(self) -> None:
        self.read = 0

    def __iter__(self) -> Iterator[Any]:
        while True:
            self.read += 1
            yield data(1 + self.read % 5)[-1]


def expected(count: int) -> list[Any]:
    return [batch for batch, _ in zip(Stream(), range(count), strict=False)]


@TRANSPORTS
@EACH_METHOD
def test_a_stream_without_end_is_read_as_far_as_steps_say(method: str, transport: str) -> None:
    stream = Stream()
    pipe = pipeline(mixed(), method, BALANCE, transport=transport)
    run = pipe.train(stream, steps=11)
    assert stream.read == 11
    truth = by_equations(mixed(), expected(11), method, BALANCE)
    assert run.losses == truth.losses
    assert different(pipe.state_dict(), truth.weights[-1] | truth.buffers) == []
    assert run.schedule.workers == METHODS[method].schedule(3, 4).take(11).workers


@TRANSPORTS
def test_a_stream_without_end_is_read_until_on_batch_stops_it(transport: str) -> None:
    stream = Stream()
    pipe = pipeline(mixed(), "pipedream", BALANCE, transport=transport)
    run = pipe.train(stream, on_batch=lambda done: done.number == 6)
    trained = len(run.losses)
    assert 7 <= trained == stream.read
    truth = by_equations(mixed(), expected(trained), "pipedream", BALANCE)
    assert run.losses == truth.losses
    assert different(pipe.state_dict(), truth.weights[-1] | truth.buffers) == []


@TRANSPORTS
@EACH_METHOD
def test_a_generator_is_trained_to_its_end(method: str, transport: str) -> None:
    pipe = pipeline(mixed(), method, BALANCE, transport=transport)
    run = pipe.train(batch for batch in data(8))
    assert run.losses == by_equations(mixed(), data(8), method, BALANCE).losses


def refilled(batches: Any) -> Iterator[Any]:
    """Yield batches one after another in the same memory, as a loader with one buffer does."""
    arrays = [part.numpy().copy() for part in batches[0]]
    buffers = tuple(map(torch.from_numpy, arrays))
    for batch in batches:
        for array, part in zip(arrays, batch, strict=True):
            array[:] = part.numpy()
        yield buffers


@TRANSPORTS
@pytest.mark.parametrize("method", METHODS)
def test_a_loader_may_fill_one_buffer_again_and_again(method: str, transport: str) -> None:
    batches = data(6)
    pipe = pipeline(mixed(), method, BALANCE, transport=transport)
    truth = by_equations(mixed(), batches, method, BALANCE)
    assert pipe.evaluate(refilled(batches)) == pipe.evaluate(batches)
    assert pipe.train(refilled(batches)).losses == truth.losses
    assert different(pipe.state_dict(), truth.weights[-1] | truth.buffers) == []


def test_batches_of_a_stream_are_read_when_they_are_needed() -> None:
    read = list[int]()
    run = list[int]()

    class Counts(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if torch.is_grad_enabled():
                run.append(len(read))
            return x

    def stream() -> Iterator[Any]:
        for number, batch in enumerate(data(9)):
            read.append(number)
            yield batch

    model = nn.Sequential(Counts(), nn.Linear(6, 3))
    pipeline(model, "flush", [1, 1], m=2).train(stream())
    assert [count - number // 2 for number, count in enumerate(run)] == [1] * len(run)


@pytest.mark.parametrize(("steps", "trained"), [(3, 3), (9, 5)])
def test_steps_are_the_most_batches_of_any_loader(steps: int, trained: int) -> None:
    losses = pipeline(mixed(), "2bw", BALANCE).train(data(5), steps=steps).losses
    assert losses == by_equations(mixed(), data(trained), "2bw", BALANCE).losses


def test_stages_on_several_workers_read_a_stream_at_once_or_as_far_as_steps() -> None:
    """Their table has to know its end: the last update averages what is left."""
    for arguments in ({"batches": iter(data(5))}, {"batches": iter(data(9)), "steps": 5}):
        pipe, plain = shared("pipedream"), shared("pipedream")
        assert pipe.train(**arguments).losses == plain.train(data(5)).losses
        assert different(pipe.state_dict(), plain.state_dict()) == []


def test_checkpoints_of_a_stream(tmp_path: Path) -> None:
    pipe, plain = (pipeline(mixed(), "2bw", BALANCE) for _ in range(2))
    pipe.train(Stream(), steps=6, checkpoints=pk.Checkpoints(tmp_path, every=2))
    plain.train(expected(6))
    again = pipeline(mixed(), "2bw", BALANCE)
    assert again.resume(tmp_path) == 0
    again.train(Stream(), steps=6, checkpoints=pk.Checkpoints(tmp_path, every=2))
    assert different(again.state_dict(), plain.state_dict()) == []


@pytest.mark.parametrize(
    ("batches", "steps", "message"),
    [
        (iter(()), None, "no batches"),
        (iter(()), 3, "no batches"),
        (data(2), 0, "steps must be at least 1 batch"),
    ],
)
def test_nothing_to_train_on(batches: Any, steps: int | None, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        pipeline(mlp(6, 6, 3), "flush", [1, 1]).train(batches, steps=steps)
