"""Batches with fewer rows than microbatches: refused before training begins if they are known."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from pipekit import Pipeline, Watch, schedules
from tests.engine.examples import (
    data,
    different,
    mlp,
    nesterov,
    pipeline,
)
from tests.engine.parametrized import TRANSPORTS


def loader(rows: int, drop_last: bool = False) -> DataLoader[Any]:
    x, y = data(1, rows=rows)[0]
    return DataLoader(TensorDataset(x, y), batch_size=8, drop_last=drop_last)


class NeverRuns(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        raise AssertionError("training has begun")


@pytest.mark.parametrize(
    ("batches", "number"),
    [(data(rows=[8, 8, 3]), 2), (loader(18), 2)],
    ids=["list", "DataLoader"],
)
def test_one_is_refused_before_training_begins(batches: Any, number: int) -> None:
    pipe = pipeline(nn.Sequential(NeverRuns(), nn.Linear(6, 3)), "flush", [1, 1])
    with pytest.raises(ValueError, match=rf"batch {number} has \d rows for 4.*drop_last=True"):
        pipe.train(batches)


@pytest.mark.parametrize("number", [0, 99, 110, 209])
def test_the_first_and_the_last_hundred_of_a_list_are_looked_at(number: int) -> None:
    pipe = pipeline(nn.Sequential(NeverRuns(), nn.Linear(6, 3)), "flush", [1, 1])
    batches = data(1) * 210
    batches[number] = data(rows=[3])[0]
    with pytest.raises(ValueError, match=f"batch {number} has 3 rows for 4 microbatches"):
        pipe.train(batches)


@pytest.mark.parametrize("number", [100, 109])
def test_one_in_the_middle_of_a_long_list_costs_no_weights(number: int) -> None:
    batches = data(1) * 210
    batches[number] = data(rows=[3])[0]
    pipe, plain = (pipeline(mlp(6, 6, 3), "flush", [1, 1]) for _ in range(2))
    with pytest.raises(ValueError, match=f"batch {number} has 3 rows for 4 microbatches"):
        pipe.train(batches, watch=Watch(trace=False))
    plain.train(data(1) * number, watch=Watch(trace=False))
    assert different(pipe.state_dict(), plain.state_dict()) == []


@pytest.mark.parametrize("batches", [data(rows=[8, 8, 3]), loader(18)], ids=["list", "DataLoader"])
@pytest.mark.parametrize("end", [None, 2])
def test_one_behind_the_steps_is_not_looked_at(batches: Any, end: int | None) -> None:
    """By a schedule without end, and by one of as many batches."""
    schedule = schedules.flush(2, 4)
    pipe = Pipeline(
        mlp(6, 6, 3),
        schedule.take(end) if end else schedule,
        balance=[1, 1],
        optimizer=nesterov,
        loss=nn.MSELoss(),
    )
    assert len(pipe.train(batches, steps=2).losses) == 2


def test_a_loader_that_drops_it_or_is_long_enough_is_trained_on() -> None:
    for rows, drop_last, batches in ((18, True, 2), (20, False, 3)):
        pipe = pipeline(mlp(6, 6, 3), "flush", [1, 1])
        assert len(pipe.train(loader(rows, drop_last)).losses) == batches


@TRANSPORTS
def test_one_that_comes_unforeseen_costs_no_weights(transport: str) -> None:
    def stream() -> Iterator[Any]:
        yield from data(rows=[8, 8, 3, 8])

    pipe, plain = (pipeline(mlp(6, 6, 3), "2bw", [1, 1], transport=transport) for _ in range(2))
    with pytest.raises(ValueError, match="batch 2 has 3 rows"):
        pipe.train(stream())
    plain.train(data(rows=[8, 8]))
    assert different(pipe.state_dict(), plain.state_dict()) == []
