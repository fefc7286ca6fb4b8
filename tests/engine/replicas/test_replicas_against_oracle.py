"""Stages on several workers against the papers' equations, bit for bit.

Running statistics are left out: every worker of a stage has its own.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from pipekit import Pipeline, Run, Schedule, Watch, oracle, schedules
from tests.engine.examples import (
    MODELS,
    OPTIMIZERS,
    Batches,
    OptimizerFactory,
    data,
    different,
    interleaved,
    mixed,
    nesterov,
    values,
)


class Method(NamedTuple):
    """Its name in the oracle, and ``(replicas, microbatches)`` to a schedule."""

    oracle: str
    schedule: Callable[[Sequence[int], int], Schedule]
    equal: bool = False  # whether all stages are on equally many workers
    least_microbatches: Callable[[Sequence[int]], int] = lambda replicas: 1


METHODS = {
    "pipedream": Method("pipedream", lambda r, _: schedules.pipedream(r)),
    "vertical_sync": Method(
        "pipedream_vertical_sync", lambda r, _: schedules.pipedream(r, vertical_sync=True)
    ),
    "no_stashing": Method(
        "pipedream_no_stashing", lambda r, _: schedules.pipedream(r, stashing=False)
    ),
    "flush": Method(
        "flush", lambda r, m: schedules.replicate(schedules.flush(len(r), m), r[0]), equal=True
    ),
    "interleaved": Method(
        "flush", lambda r, m: schedules.replicate(interleaved(len(r), m), r[0]), equal=True
    ),
    "2bw": Method(
        "2bw",
        lambda r, m: schedules.replicate(schedules.two_bw(len(r), m), r[0]),
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
    compare(
        model,
        batches,
        made.schedule(replicas, m),
        {"transport": transport, "recompute": recompute},
        method=made.oracle,
        balance=balance,
        replicas=replicas,
        microbatches=m * replicas[0] if made.equal else 1,
        optimizer=OPTIMIZERS[optimizer],
        clip_norm=clip_norm,
    )


def compare(
    model: nn.Sequential,
    batches: Batches,
    schedule: Schedule,
    options: dict[str, Any],
    *,
    balance: list[int],
    replicas: list[int],
    optimizer: OptimizerFactory = nesterov,
    clip_norm: float | None = None,
    **truth_options: Any,
) -> Run:
    """Train by a schedule and by the equations; ``options`` are the pipeline's own."""
    both: dict[str, Any] = {
        "balance": balance,
        "optimizer": optimizer,
        "loss": nn.MSELoss(),
        "clip_norm": clip_norm,
        "seed": 0,
    }
    pipe = Pipeline(model, schedule, **values(**both, **options))
    run = pipe.train(batches, watch=Watch(trace=False))
    truth = oracle.train(model, batches, replicas=replicas, **both, **truth_options)
    assert run.losses == truth.losses
    weights = {
        name: tensor for name, tensor in pipe.state_dict().items() if name in truth.weights[0]
    }
    assert different(weights, truth.weights[-1]) == []
    return run


@settings(max_examples=4)
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


@pytest.mark.parametrize(
    ("replicas", "in_flight", "vertical_sync"),
    [([1, 1, 1], [5, 3, 1], True), ([2, 1, 1], [3, 4, 2], False)],
)
def test_more_in_flight_than_there_are_workers(
    replicas: list[int], in_flight: list[int], vertical_sync: bool
) -> None:
    """To hide links that take time: older weights, more versions."""
    run = compare(
        mixed(),
        data(12, rows=4),
        schedules.pipedream(replicas, vertical_sync=vertical_sync, in_flight=in_flight),
        {},
        method="pipedream_vertical_sync" if vertical_sync else "pipedream",
        balance=[2, 3, 3],
        replicas=replicas,
        in_flight=in_flight,
    )
    assert run.peak_in_flight[0] == in_flight[0]
