"""Batches without a length, read as they are needed."""

import gc
import tracemalloc
from collections.abc import Iterator
from itertools import repeat
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import pipekit as pk
from pipekit import Watch, schedules
from pipekit.engine import BatchDone
from tests.engine.examples import (
    METHODS,
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
from tests.people.test_torchgpipe import Calls

EACH_METHOD = first_over_processes("method", ["pipedream", "2bw", "flush"])
BALANCE = [2, 3, 3]
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


@EACH_METHOD
def test_a_stream_without_end_is_read_as_far_as_steps_say(method: str, transport: str) -> None:
    stream = Stream()
    pipe = pipeline(mixed(), method, BALANCE, transport=transport)
    run = pipe.train(stream, steps=11)
    assert stream.read == 11
    truth = by_equations(mixed(), expected(11), method, BALANCE)
    assert unlike(Trained(run.losses, pipe.state_dict()), truth) == []
    assert run.schedule.workers == METHODS[method].schedule(3, 4).take(11).workers


@TRANSPORTS
def test_a_stream_without_end_is_read_until_on_batch_stops_it(transport: str) -> None:
    stream = Stream()
    pipe = pipeline(mixed(), "pipedream", BALANCE, transport=transport)
    run = pipe.train(stream, on_batch=lambda done: done.number == 6)
    assert 7 <= len(run.losses) == stream.read
    truth = by_equations(mixed(), expected(stream.read), "pipedream", BALANCE)
    assert unlike(Trained(run.losses, pipe.state_dict()), truth) == []


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


@EACH_METHOD
def test_a_loader_may_fill_one_buffer_again_and_again(method: str, transport: str) -> None:
    batches = data(6)
    pipe = pipeline(mixed(), method, BALANCE, transport=transport)
    truth = by_equations(mixed(), batches, method, BALANCE)
    assert pipe.evaluate(refilled(batches)) == pipe.evaluate(batches)
    assert unlike(trained(pipe, refilled(batches)), truth) == []


@pytest.mark.parametrize("sized", [False, True])
def test_batches_are_read_when_they_are_needed(sized: bool) -> None:
    """No more are in memory than the pipeline needs."""
    read = list[int]()
    run = list[int]()

    def count(x: torch.Tensor) -> torch.Tensor:
        if torch.is_grad_enabled():
            run.append(len(read))
        return x

    class Sized:
        def __len__(self) -> int:
            return 9

        def __iter__(self) -> Iterator[Any]:
            for number, batch in enumerate(data(9)):
                read.append(number)
                yield batch

    model = nn.Sequential(Calls(count), nn.Linear(6, 3))
    pipeline(model, "flush", [1, 1], m=2).train(Sized() if sized else iter(Sized()))
    assert [count - number // 2 for number, count in enumerate(run)] == [1] * len(run)


@pytest.mark.parametrize(("steps", "most"), [(3, 3), (9, 5)])
def test_steps_are_the_most_batches_of_any_loader(steps: int, most: int) -> None:
    losses = pipeline(mixed(), "2bw", BALANCE).train(data(5), steps=steps).losses
    assert losses == by_equations(mixed(), data(most), "2bw", BALANCE).losses


def test_stages_on_several_workers_read_a_stream_at_once_or_as_far_as_steps() -> None:
    """Their table has to know its end: the last update averages what is left."""

    def shared() -> pk.Pipeline:
        return pipeline(mlp(6, 6, 6, 3), schedules.pipedream([2, 1]), [1, 2])

    for arguments in ({"batches": iter(data(5))}, {"batches": iter(data(9)), "steps": 5}):
        pipe = shared()
        found = Trained(pipe.train(**arguments).losses, pipe.state_dict())
        assert unlike(found, trained(shared(), data(5))) == []
    assert len(pipe.train(iter(data(4)), steps=6).losses) == 4  # two updates of two
    with pytest.raises(ValueError, match="the batches ended after 5, within an update of several"):
        pipe.train(iter(data(5)), steps=6)


def test_checkpoints_of_a_stream(tmp_path: Path) -> None:
    pipe, plain = (pipeline(mixed(), "2bw", BALANCE) for _ in range(2))
    pipe.train(Stream(), steps=6, checkpoints=pk.Checkpoints(tmp_path, every=2))
    plain.train(expected(6))
    again = pipeline(mixed(), "2bw", BALANCE)
    assert again.resume(tmp_path) == 0
    again.train(Stream(), steps=6, checkpoints=pk.Checkpoints(tmp_path, every=2))
    assert different(again.state_dict(), plain.state_dict()) == []


def test_a_run_without_a_trace_keeps_at_most_a_hundred_bytes_a_batch() -> None:
    held: list[int] = []

    def listen(done: BatchDone) -> None:
        if done.number in (60, 200):
            gc.collect()
            held.append(tracemalloc.get_traced_memory()[0])

    pipe = pipeline(mlp(6, 6, 3), "2bw", [1, 1], m=2)
    tracemalloc.start()
    try:
        pipe.train(repeat(data(1)[0], 204), on_batch=listen, watch=Watch(trace=False))
    finally:
        tracemalloc.stop()
    assert held[1] - held[0] <= 140 * 100
