"""Batches with fewer rows than microbatches: refused before training begins, or cut into fewer."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from pipekit import Pipeline, Watch, oracle, schedules
from pipekit.layers import batch_norm
from tests.engine.examples import (
    by_equations,
    data,
    different,
    mlp,
    nesterov,
    pairs,
    pipeline,
    trained,
    unlike,
)
from tests.engine.parametrized import TRANSPORTS, first_over_processes
from tests.people.test_torchgpipe import Calls


@first_over_processes("method", ["flush", "gpipe", "2bw", "interleaved"])
def test_a_short_batch_is_trained_in_as_many_microbatches_as_it_has_rows(
    method: str, transport: str
) -> None:
    """The others pass without rows: each update is that of the rows there are."""
    batches = data(rows=[8, 1, 3, 8])
    how: Any = {"transport": transport, "short_batches": "fewer"}
    pipe = pipeline(mlp(6, 6, 6, 6, 3), method, [1, 1, 1, 1], m=4, **how)
    run = pipe.train(batches)
    method = "2bw" if method == "2bw" else "sequential"
    truth = of_rows(batches, method)
    assert run.losses == pytest.approx(truth.losses, rel=1e-6)
    state = pipe.state_dict()
    for name, tensor in truth.weights[-1].items():
        assert torch.allclose(state[name], tensor, rtol=1e-5, atol=1e-7), name


def of_rows(batches: Any, method: str) -> Any:
    """The equations, which know of no microbatches where each batch is one."""
    return oracle.train(
        mlp(6, 6, 6, 6, 3),
        batches,
        method=method,
        balance=[1, 1, 1, 1],
        optimizer=nesterov,
        loss=nn.MSELoss(),
    )


def test_it_equals_the_same_rows_in_a_table_of_fewer_microbatches() -> None:
    """To the bit, in the order of the sums."""
    batches = [(x[:3], y[:3]) for x, y in data(2)]
    truth = by_equations(plain_pairs(), batches, "gpipe", [4, 4], m=3)
    pipe = pipeline(plain_pairs(), "gpipe", [4, 4], m=4, short_batches="fewer")
    assert unlike(trained(pipe, batches), truth) == []


def plain_pairs() -> nn.Sequential:
    """Draws no numbers, as those go with a microbatch's place; norms want more than one row."""
    model = pairs()
    model[2], model[4] = nn.Identity(), nn.Identity()
    return model


@pytest.mark.parametrize(("method", "recompute"), [("flush", "always"), ("gpipe", "except_last")])
def test_with_recomputation_and_memory_followed(method: str, recompute: str) -> None:
    one, other = (
        pipeline(mlp(6, 6, 6, 3), method, [1, 1, 1], recompute=mode, short_batches="fewer")
        for mode in (recompute, "never")
    )
    batches = data(rows=[8, 2, 8])
    watch = Watch(memory=True, outputs=True)
    runs = [pipe.train(batches, watch=watch) for pipe in (one, other)]
    assert [len(outputs) for outputs in runs[0].outputs] == [4, 2, 4]
    assert runs[0].losses == runs[1].losses
    assert different(one.state_dict(), other.state_dict()) == []
    tasks = [len(tasks) for tasks in runs[1].schedule.workers]
    assert runs[1].trace.frame.groupby("worker").size().tolist() == tasks


def test_a_batch_norm_that_waits_for_the_end_of_a_batch_still_hears_of_it() -> None:
    """The empty microbatches come first."""
    norm = nn.BatchNorm2d(1)
    model = nn.Sequential(nn.Unflatten(1, (1, 2, 3)), norm, nn.Flatten(), nn.Linear(6, 3))
    layers = batch_norm.convert_batch_norm(model)
    assert isinstance(layers, nn.Sequential)
    pipe = pipeline(layers, "flush", [2, 2], short_batches="fewer")
    (x, y), *_ = data(rows=[3])
    run = pipe.train([(x, y)])
    assert run.microbatch_losses[0][0] == 0
    assert all(run.microbatch_losses[0][1:])
    norm(x.unflatten(1, (1, 2, 3)))  # the whole batch at once
    for name in ("running_mean", "running_var", "num_batches_tracked"):
        assert torch.allclose(pipe.state_dict()[f"1.{name}"], norm.get_buffer(name)), name


def loader(rows: int, drop_last: bool = False) -> DataLoader[Any]:
    x, y = data(1, rows=rows)[0]
    return DataLoader(TensorDataset(x, y), batch_size=8, drop_last=drop_last)


def never_trained() -> Pipeline:
    def begin(x: torch.Tensor) -> torch.Tensor:
        raise AssertionError("training has begun")

    return pipeline(nn.Sequential(Calls(begin), nn.Linear(6, 3)), "flush", [1, 1])


@pytest.mark.parametrize("number", [None, 0, 209])
def test_one_is_refused_before_training_begins(number: int | None) -> None:
    """Of a list the first and the last hundred are looked at."""
    batches = data(1) * 210
    batches[number or 0] = data(rows=[3])[0]
    says = rf"batch {2 if number is None else number} has \d rows? for 4.*short_batches='few"
    with pytest.raises(ValueError, match=says):
        never_trained().train(loader(18) if number is None else batches)


@pytest.mark.parametrize("batches", [data(rows=[8, 8, 3]), loader(18)], ids=["list", "DataLoader"])
@pytest.mark.parametrize("end", [None, 2])
def test_one_behind_the_steps_is_not_looked_at(batches: Any, end: int | None) -> None:
    """By a schedule without end, and by one of as many batches."""
    schedule = schedules.flush(2, 4)
    pipe = pipeline(mlp(6, 6, 3), schedule.take(end) if end else schedule, [1, 1])
    assert len(pipe.train(batches, steps=2).losses) == 2


@TRANSPORTS
def test_one_that_comes_unforeseen_costs_no_weights(transport: str) -> None:
    def stream() -> Iterator[Any]:
        yield from data(rows=[8, 8, 3, 8])

    pipe = pipeline(mlp(6, 6, 3), "2bw", [1, 1], transport=transport)
    plain = pipeline(mlp(6, 6, 3), "2bw", [1, 1])
    with pytest.raises(ValueError, match="batch 2 has 3 rows"):
        pipe.train(stream())
    plain.train(data(rows=[8, 8]))
    assert different(pipe.state_dict(), plain.state_dict()) == []
