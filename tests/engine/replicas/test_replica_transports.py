"""Stages on several workers train to the same bits whatever the transport, and whoever is faster."""

import copy
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pipekit import Checkpoints, schedules
from tests.engine.examples import (
    OPTIMIZERS,
    Batches,
    Midst,
    Trained,
    data,
    different,
    mixed,
    mlp,
    pipeline,
    sgd,
    trained,
    twins,
    unlike,
)
from tests.engine.gloo import over_gloo
from tests.engine.parametrized import TRANSPORTS
from tests.engine.replicas.shared_tables import two_directions
from tests.engine.replicas.test_replicas import BALANCES, Weights, replicated
from tests.engine.updates.test_ties import tied


@pytest.mark.parametrize("taken", [None, 5])
def test_a_batch_of_the_run_before_is_not_taken_for_one_of_this(taken: int | None) -> None:
    """Each worker hears of all batches, and leaves the last one unread if it is the other's."""
    schedule = schedules.pipedream([2])

    if taken:
        schedule = schedule.take(taken)
    pipes = twins(mlp(6, 6, 3), schedule, [2], optimizer=sgd)
    assert unlike(*(trained(pipe, data(5), data(5, rows=9)) for pipe in pipes)) == []


def test_several_stages_on_several_workers() -> None:
    """Each worker has two stages of four, shares both with one other, and clips with all."""

    def outcome(**options: Any) -> Trained:
        pipe = pipeline(
            tied(("0.weight", "4.weight")),
            schedules.replicate(schedules.interleaved(4, 3, workers=2), 2),
            [2, 1, 2, 1],
            optimizer=OPTIMIZERS["adam"],
            clip_norm=0.1,
            **options,
        )
        return trained(pipe, data(5, rows=12))

    processes = partial(outcome, transport="distributed")
    for found in (processes(), *over_gloo(processes, 4)):
        assert unlike(found, outcome()) == []


@TRANSPORTS
def test_fewer_minibatches_than_replicas(transport: str) -> None:
    """The third worker has nothing to do in the first run, and is as good as new in the next."""
    pipe = replicated(mlp(6, 8, 3), [3], [2], transport=transport)
    reference = replicated(mlp(6, 8, 3), [2], [2])
    for batches in (data(4)[:2], data(4)[2:]):
        assert unlike(trained(pipe, batches), trained(reference, batches)) == []
    assert len(pipe.train(data(6)).losses) == 6


def test_gradients_in_many_small_buckets() -> None:
    """Two dtypes take turns, which makes a bucket for each layer whatever the transport."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), Double(8), nn.Linear(8, 8), Double(8), nn.Linear(8, 3))
    pipes = [replicated(model, [3], [5], transport=how) for how in ("threads", "distributed")]
    assert unlike(*(trained(pipe, data(7)) for pipe in pipes)) == []


class Double(nn.Linear):
    """A layer that computes in double precision."""

    def __init__(self, width: int) -> None:
        super().__init__(width, width, dtype=torch.float64)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.double()).float()


def normed(momentum: float | None = 0.1) -> nn.Sequential:
    """Statistics of the data alone, and a buffer of another kind, infinite in places."""
    model = nn.Sequential(nn.BatchNorm1d(6, momentum=momentum), *mlp(6, 3))
    model[0].register_buffer("mask", torch.tensor([0.0, -torch.inf, 1 / 3]))
    return model


def own_statistics(batches: Batches, norm: nn.Module) -> nn.Module:
    for x, _ in batches:
        norm(x)
    return norm


def test_who_has_had_no_batch_has_no_part_in_the_mean() -> None:
    pipes = [pipeline(normed(), schedules.asp(workers), [2]) for workers in (2, 3)]
    for pipe in pipes:
        pipe.train(data(2))
    assert different(*(pipe.state_dict() for pipe in pipes)) == []


@pytest.mark.parametrize("momentum", [0.1, None])
def test_running_statistics_are_the_mean_of_all_replicas(momentum: float | None) -> None:
    """Those of two runs, the second of which begins with the mean of the first."""
    batches, worker = data(7), [normed(momentum)[0] for _ in range(3)]
    for _ in range(2):
        for place, norm in enumerate(worker):
            own_statistics(batches[place::3], norm)
        for name in ("running_mean", "running_var"):
            mean = torch.stack([norm.get_buffer(name) for norm in worker]).mean(0)
            for norm in worker:
                norm.get_buffer(name).copy_(mean)
        for norm in worker[1:]:
            norm.get_buffer("num_batches_tracked").copy_(
                worker[0].get_buffer("num_batches_tracked")
            )
    found = {}
    for how in ("threads", "distributed", "gloo") if momentum else ("threads",):

        def run(how: str = how) -> Weights:
            transport = "threads" if how == "threads" else "distributed"
            pipe = replicated(normed(momentum), [3], [2], transport=transport)
            pipe.train(batches)
            pipe.train(batches)
            return pipe.state_dict()

        found[how] = over_gloo(run, 3)[2] if how == "gloo" else run()
    for weights in found.values():
        assert different(weights, found["threads"]) == []
        for name in ("running_mean", "running_var", "num_batches_tracked"):
            torch.testing.assert_close(weights[f"0.{name}"], worker[0].get_buffer(name))
        assert torch.equal(weights["0.mask"], normed()[0].get_buffer("mask"))


def test_statistics_of_two_directions_are_the_mean_of_both() -> None:
    layers = nn.Sequential(nn.BatchNorm1d(6), nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Linear(6, 3))
    down, up = (copy.deepcopy(layers[0]) for _ in range(2))
    batches = data(2)
    pipe = pipeline(layers, two_directions(2, 4, 2), [2, 2], optimizer=sgd)
    pipe.train(batches)
    for x, _ in batches:
        for k, part in enumerate(x.split(2)):
            (up if k % 2 else down)(part)
    mean = (down.get_buffer("running_mean") + up.get_buffer("running_mean")) / 2
    torch.testing.assert_close(pipe.state_dict()["0.running_mean"], mean)


def test_other_stages_go_on_with_the_mean(tmp_path: Path) -> None:
    """A checkpoint in the midst of a run has each worker's own: here the one that an end leaves."""
    batches = data(12)

    def stop() -> None:
        raise InterruptedError

    first, other = (replicated(normed(), *each) for each in (([3], [2]), ([1, 1], [1, 1])))
    with pytest.raises(InterruptedError):
        first.train(Midst(batches, 9, stop), checkpoints=Checkpoints(tmp_path, every=6))
    other.resume(tmp_path)
    each = [own_statistics(batches[place:9:3], normed()[0]) for place in range(3)]
    mean = torch.stack([norm.get_buffer("running_mean") for norm in each]).mean(0)
    torch.testing.assert_close(other.state_dict()["0.running_mean"], mean)


def test_processes_train_and_evaluate_as_threads_do() -> None:
    """Ragged last rounds, several senders and receivers to a stage, a sum beside the messages.

    One worker of each stage evaluates in between.
    """

    def run(transport: str) -> Trained:
        pipe = replicated(mixed(), [2, 1, 2], BALANCES[3], transport=transport)
        losses = [*pipe.train(data(5)).losses, pipe.evaluate(data(3))]
        more, state = trained(pipe, data(5, rows=9))
        return Trained(losses + more, state)

    here, under_torchrun = run("distributed"), over_gloo(partial(run, "distributed"), 5)
    for found in (here, *under_torchrun):
        assert unlike(found, run("threads")) == []


def test_torchrun_refuses_a_run_that_leaves_a_process_behind() -> None:
    def run() -> None:
        replicated(mlp(6, 8, 3), [2], [2], transport="distributed").train(data(1))

    with pytest.raises(ValueError, match="nothing to do for worker 1"):
        over_gloo(run, 2)
