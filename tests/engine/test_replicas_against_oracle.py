"""Stages on several workers against the papers' equations, bit for bit.

Running statistics are left out: every worker of a stage has its own.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from pipekit import Pipeline, Schedule, oracle, schedules
from tests.engine.examples import (
    MODELS,
    OPTIMIZERS,
    Batches,
    cores_of_each,
    data,
    different,
    mixed,
    nesterov,
)


class Method(NamedTuple):
    """Its name in the oracle, and ``(replicas, microbatches, batches)`` to a schedule."""

    oracle: str
    schedule: Callable[[Sequence[int], int, int], Schedule]
    equal: bool = False  # whether all stages are on equally many workers
    least_microbatches: Callable[[Sequence[int]], int] = lambda replicas: 1


METHODS = {
    "pipedream": Method("pipedream", lambda r, _, n: schedules.pipedream(r, n)),
    "vertical_sync": Method(
        "pipedream_vertical_sync", lambda r, _, n: schedules.pipedream(r, n, vertical_sync=True)
    ),
    "no_stashing": Method(
        "pipedream_no_stashing", lambda r, _, n: schedules.pipedream(r, n, stashing=False)
    ),
    "flush": Method(
        "flush",
        lambda r, m, n: schedules.replicate(schedules.flush(len(r), m, n), r[0]),
        equal=True,
    ),
    "2bw": Method(
        "2bw",
        lambda r, m, n: schedules.replicate(schedules.two_bw(len(r), m, n), r[0]),
        equal=True,
        least_microbatches=len,
    ),
}


def train_both_ways(
    model: nn.Sequential,
    batches: Batches,
    method: str,
    balance: list[int],
    replicas: list[int],
    m: int = 1,
    optimizer: str = "nesterov",
    clip_norm: float | None = None,
    transport: str = "threads",
    recompute: str = "never",
) -> None:
    made = METHODS[method]
    pipe = Pipeline(
        model,
        lambda n: made.schedule(replicas, m, n),
        balance=balance,
        optimizer=OPTIMIZERS[optimizer],
        loss=nn.MSELoss(),
        clip_norm=clip_norm,
        transport=transport,
        recompute=recompute,  # type: ignore[arg-type]  # hypothesis draws a plain str
    )
    run = pipe.train(batches, trace=False)
    truth = oracle.train(
        model,
        batches,
        method=made.oracle,
        balance=balance,
        replicas=replicas,
        microbatches=m * replicas[0] if made.equal else 1,
        optimizer=OPTIMIZERS[optimizer],
        loss=nn.MSELoss(),
        clip_norm=clip_norm,
        threads=cores_of_each(sum(replicas)),
    )
    assert run.losses == truth.losses
    weights = {
        name: tensor for name, tensor in pipe.state_dict().items() if name in truth.weights[0]
    }
    assert different(weights, truth.weights[-1]) == []


@settings(max_examples=25)
@given(data_=st.data())
@pytest.mark.parametrize("method", METHODS)
def test_weights_and_losses_are_the_equations_bit_for_bit(
    method: str, data_: st.DataObject
) -> None:
    draw, made = data_.draw, METHODS[method]
    replicas = draw(st.lists(st.integers(1, 3), min_size=1, max_size=3), "replicas")
    if made.equal:
        replicas = replicas[:1] * len(replicas)
    edges = draw(
        st.sets(st.integers(1, 7), min_size=len(replicas) - 1, max_size=len(replicas) - 1), "edges"
    )
    stops = [*sorted(edges), 8]
    balance = [stop - start for start, stop in zip([0, *stops], stops, strict=False)]
    low = made.least_microbatches(replicas)
    m = draw(st.integers(low, low + 2), "microbatches") if made.equal else 1
    least = 2 * m * replicas[0] if made.equal else 2  # batch norm needs two rows
    rows = draw(st.lists(st.integers(least, least + 3), min_size=1, max_size=9), "rows")
    train_both_ways(
        MODELS[draw(st.sampled_from(sorted(MODELS)), "model")](),
        data(rows=rows),
        method,
        balance,
        replicas,
        m,
        optimizer=draw(st.sampled_from(["nesterov", "adam"]), "optimizer"),
        clip_norm=draw(st.sampled_from([None, 0.1])) if made.equal else None,
        recompute=draw(st.sampled_from(["never", "always"]))
        if method != "no_stashing"
        else "never",
    )


@pytest.mark.parametrize(
    ("method", "replicas", "m"),
    [("pipedream", [2, 1, 1], 1), ("vertical_sync", [1, 2, 1], 1), ("2bw", [2, 2, 2], 3)],
)
def test_processes_too(method: str, replicas: list[int], m: int) -> None:
    batches = data(5, rows=12)
    train_both_ways(mixed(), batches, method, [2, 3, 3], replicas, m, transport="distributed")


@pytest.mark.parametrize("workers", [1, 2, 3, 4])
def test_asp(workers: int) -> None:
    model, batches = MODELS["pairs"](), data(7, rows=4)
    pipe = Pipeline(
        model,
        lambda n: schedules.asp(workers, n),
        balance=[8],
        optimizer=nesterov,
        loss=nn.MSELoss(),
    )
    run = pipe.train(batches)
    truth = oracle.train(
        model,
        batches,
        method="asp",
        balance=[8],
        replicas=[workers],
        optimizer=nesterov,
        loss=nn.MSELoss(),
        threads=cores_of_each(workers),
    )
    assert run.losses == truth.losses
    for name, tensor in truth.weights[-1].items():
        assert torch.equal(pipe.state_dict()[name], tensor)


@pytest.mark.parametrize("vertical_sync", [False, True])
@pytest.mark.parametrize(
    ("replicas", "in_flight"), [([1, 1, 1], [5, 3, 1]), ([2, 1, 1], [3, 4, 2])]
)
def test_more_in_flight_than_there_are_workers(
    replicas: list[int], in_flight: list[int], vertical_sync: bool
) -> None:
    """To hide links that take time: older weights, more versions."""
    model, batches = mixed(), data(12, rows=4)
    pipe = Pipeline(
        model,
        lambda n: schedules.pipedream(
            replicas, n, vertical_sync=vertical_sync, in_flight=in_flight
        ),
        balance=[2, 3, 3],
        optimizer=nesterov,
        loss=nn.MSELoss(),
    )
    run = pipe.train(batches)
    truth = oracle.train(
        model,
        batches,
        method="pipedream_vertical_sync" if vertical_sync else "pipedream",
        balance=[2, 3, 3],
        replicas=replicas,
        in_flight=in_flight,
        optimizer=nesterov,
        loss=nn.MSELoss(),
        threads=cores_of_each(sum(replicas)),
    )
    assert run.peak_in_flight[0] == in_flight[0]
    assert run.losses == truth.losses
    for name, tensor in truth.weights[-1].items():
        assert torch.equal(pipe.state_dict()[name], tensor)
