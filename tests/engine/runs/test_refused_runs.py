"""Runs that are refused, and what is refused within a run: nothing is lost by it."""

import os
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from pipekit import schedules
from tests.engine.examples import data, different, mlp, pipeline
from tests.engine.parametrized import TRANSPORTS, first_over_processes
from tests.engine.test_failures import NeedsTwoArguments


class AsksAgain(torch.optim.SGD):
    """Takes steps as LBFGS does."""

    def step(self, closure: Any) -> Any:  # type: ignore[override]
        return super().step(closure)


class Sharp(torch.optim.SGD):  # says that it needs a closure only when it steps
    def step(self, closure: Any = None) -> Any:
        return super().step(closure) if closure() else None


def cannot_travel(parameters: Any) -> torch.optim.Optimizer:
    raise NeedsTwoArguments("this", "that")


@pytest.mark.parametrize(
    ("optimizer", "message", "transport"),
    [
        (partial(torch.optim.SGD, lr=-1.0), "Invalid learning rate: -1.0", "threads"),
        (torch.optim.LBFGS, "LBFGS's step needs a closure.*use another optimizer", "threads"),
        (AsksAgain, "AsksAgain's step needs a closure", "threads"),
        (Sharp, "Sharp's step needs a closure", "threads"),
        (cannot_travel, "this and that", "distributed"),
    ],
)
def test_an_optimizer_that_cannot_be_made_loses_nothing(
    optimizer: Any, message: str, transport: str
) -> None:
    model = nn.Sequential(*mlp(6, 6), nn.BatchNorm1d(6), *mlp(6, 3))
    pipe = pipeline(model, "flush", [2, 1], transport=transport, optimizer=optimizer)
    for _ in range(2):
        with pytest.raises(Exception, match=message):
            pipe.train(data(3))
        assert different(pipe.state_dict(), model.state_dict()) == []


def test_a_number_of_batches_that_is_refused_loses_nothing() -> None:
    model = mlp(6, 6, 3)
    pipe = pipeline(model, schedules.pipedream([2, 1]), [1, 1], mitigation="gap-aware")
    with pytest.raises(ValueError, match="a multiple of the workers of each stage"):
        pipe.train(data(3))
    assert different(pipe.state_dict(), model.state_dict()) == []
    pipe.train(data(4))


@first_over_processes("what", ["close", "read", "load", "rate", "train", "evaluate", "resume"])
def test_within_a_run_it_is_said_what_to_do(what: str, transport: str, tmp_path: Path) -> None:
    batches = data(2)
    pipe = pipeline(mlp(6, 6, 3), "flush", [1, 1], transport=transport)
    uses: dict[str, Callable[[], object]] = {
        "read": pipe.state_dict,
        "load": lambda: pipe.load_state_dict(mlp(6, 6, 3).state_dict()),
        "rate": lambda: pipe.set_learning_rate(0.1),
        "train": lambda: pipe.train(batches),
        "evaluate": lambda: pipe.evaluate(batches),
        "resume": lambda: pipe.resume(tmp_path),
        "close": pipe.close,
    }
    said: list[str] = []

    def on_batch(_: object) -> None:
        with pytest.raises(RuntimeError) as caught:
            uses[what]()
        said.append(str(caught.value))

    pipe.train(batches, on_batch=on_batch)
    assert len(said) == 2
    assert all("a run is under way" in each and "steps=..." in each for each in said)
    plain = pipeline(mlp(6, 6, 3), "flush", [1, 1])
    plain.train(batches)
    assert different(pipe.state_dict(), plain.state_dict()) == []


@pytest.mark.parametrize("what", ["train", "evaluate"])
def test_of_two_threads_one_is_refused_at_once(what: str) -> None:
    """The second call comes while the first one reads its batches, and leaves it alone."""
    batches = data(3)
    pipe = pipeline(mlp(6, 6, 3), "flush", [1, 1])
    reading, refused = threading.Event(), threading.Event()

    def slow() -> Iterator[Any]:
        for batch in batches:
            reading.set()
            assert refused.wait(30)
            yield batch

    losses: list[list[float]] = []
    first = threading.Thread(target=lambda: losses.append(pipe.train(slow()).losses))
    first.start()
    assert reading.wait(30)
    with pytest.raises(RuntimeError, match="from one thread at a time"):
        getattr(pipe, what)(batches)
    refused.set()
    first.join()
    assert losses == [pipeline(mlp(6, 6, 3), "flush", [1, 1]).train(batches).losses]


@TRANSPORTS
def test_a_forked_process_does_not_train_with_the_workers_of_its_parent(transport: str) -> None:
    batches = data(2)
    pipe = pipeline(mlp(6, 6, 3), "flush", [1, 1], transport=transport)
    pipe.train(batches)
    ours, theirs = os.pipe()
    if (child := os.fork()) == 0:
        try:
            pipe.train(batches)
        except RuntimeError as error:
            os.write(theirs, str(error).encode())
        os._exit(0)
    os.waitpid(child, 0)
    assert "build a pipeline in the forked process" in os.read(ours, 1000).decode()
    os.close(ours)
    os.close(theirs)
    pipe.train(batches)
    pipe.close()
