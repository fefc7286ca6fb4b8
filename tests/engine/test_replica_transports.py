"""Stages on several workers train to the same bits whatever the transport, and whoever is faster."""

from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.optim.lr_scheduler import StepLR

from pipekit import Pipeline, schedules
from tests.engine.examples import OPTIMIZERS, data, different, mixed, mlp
from tests.engine.gloo import over_gloo
from tests.engine.test_replicas import BALANCES, TRANSPORTS, Weights, replicated
from tests.engine.updates.test_ties import tied

HOW: dict[str, dict[str, Any]] = {
    "2-1-1 Adam": {"replicas": [2, 1, 1], "optimizer": OPTIMIZERS["adam"]},
    "3 momentum": {"replicas": [3]},
    "1-2-1 recomputed": {"replicas": [1, 2, 1], "recompute": "always"},
    "2-3 Adam": {"replicas": [2, 3], "optimizer": OPTIMIZERS["adam"]},
    "2-2 synced": {"replicas": [2, 2], "variant": {"vertical_sync": True}},
    "2 with a schedule": {"replicas": [2], "lr_scheduler": lambda o: StepLR(o, 2, 0.5)},
    "2-1 naive": {"replicas": [2, 1], "variant": {"stashing": False}},
}


def trained_twice(how: dict[str, Any], transport: str) -> tuple[list[float], Weights]:
    """Dropout and batch norm, a ragged last round, and a second run from where the first ended."""
    options = dict(how)
    replicas = options.pop("replicas")
    pipe = replicated(mixed(), replicas, BALANCES[len(replicas)], transport=transport, **options)
    losses = pipe.train(data(7)).losses + pipe.train(data(5, rows=9)).losses
    return losses, pipe.state_dict()


@pytest.mark.parametrize("name", HOW)
def test_processes_train_as_threads_do(name: str) -> None:
    losses, weights = trained_twice(HOW[name], "threads")
    assert trained_twice(HOW[name], "threads")[0] == losses, "whoever is faster"
    again, others = trained_twice(HOW[name], "distributed")
    assert again == losses
    assert different(others, weights) == []


def test_several_stages_on_several_workers() -> None:
    """Each worker has two stages of four, shares both with one other, and clips with all."""

    def trained(**options: Any) -> tuple[list[float], Weights]:
        pipe = Pipeline(
            tied(("0.weight", "4.weight")),
            lambda n: schedules.replicate(schedules.interleaved(4, 3, n, workers=2), 2),
            balance=[2, 1, 2, 1],
            optimizer=OPTIMIZERS["adam"],
            loss=nn.MSELoss(),
            clip_norm=0.1,
            **options,
        )
        return pipe.train(data(5, rows=12)).losses, pipe.state_dict()

    losses, weights = trained()
    for again, others in (
        trained(transport="distributed"),
        *over_gloo(lambda: trained(transport="distributed"), 4),
    ):
        assert again == losses
        assert different(others, weights) == []


@TRANSPORTS
def test_fewer_minibatches_than_replicas(transport: str) -> None:
    """The third worker has nothing to do in the first run, and is as good as new in the next."""
    pipe = replicated(mlp(6, 8, 3), [3], [2], transport=transport)
    reference = replicated(mlp(6, 8, 3), [2], [2])
    for batches in (data(4)[:2], data(4)[2:]):
        assert pipe.train(batches).losses == reference.train(batches).losses
    assert different(pipe.state_dict(), reference.state_dict()) == []
    assert len(pipe.train(data(6)).losses) == 6


@TRANSPORTS
def test_gradients_in_many_small_buckets(transport: str) -> None:
    """Two dtypes take turns, which makes a bucket for each layer whatever the transport."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), Double(8), nn.Linear(8, 8), Double(8), nn.Linear(8, 3))
    runs = [replicated(model, [3], [5], transport=how) for how in ("threads", transport)]
    losses = [pipe.train(data(7)).losses for pipe in runs]
    assert losses[0] == losses[1]
    whole = replicated(nn.Sequential(*(Single(layer) for layer in model)), [3], [5])
    assert whole.train(data(7)).losses == pytest.approx(losses[0], rel=1e-4)


class Double(nn.Linear):
    """A layer that computes in double precision."""

    def __init__(self, width: int) -> None:
        super().__init__(width, width, dtype=torch.float64)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.double()).float()


class Single(nn.Module):
    """A layer in single precision, whatever it was."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        assert isinstance(layer, nn.Linear)
        self.layer = nn.Linear(layer.in_features, layer.out_features)
        self.layer.load_state_dict(layer.state_dict())

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layer(x)
        return y


def test_evaluation_uses_one_of_each_stage_and_leaves_no_trace() -> None:
    values, weights = [], []
    for transport in ("threads", "distributed"):
        pipe = replicated(mixed(), [2, 1], [4, 4], transport=transport)
        pipe.train(data(3))
        values.append(pipe.evaluate(data(4)))
        pipe.train(data(3))
        weights.append(pipe.state_dict())
    assert values[0] == values[1]
    assert different(weights[0], weights[1]) == []


def test_running_statistics_are_the_first_replicas() -> None:
    pipe = replicated(mixed(), [3], [8])
    pipe.train(data(7))
    assert pipe.state_dict()["1.num_batches_tracked"] == 3, "minibatches 0, 3 and 6"


def test_memory_can_be_followed() -> None:
    trace = replicated(mixed(), [2, 1], [4, 4]).train(data(4), memory=True).trace
    assert trace.memory is not None
    first, second, _ = trace.memory.peak_bytes
    assert first == second, "replicas hold the same"


# --- Under torchrun ------------------------------------------------------------------------------


def over_gloo_and_here(replicas: list[int], minibatches: int) -> tuple[Any, Any]:
    def run(transport: str) -> Any:
        pipe = replicated(mixed(), replicas, BALANCES[len(replicas)], transport=transport)
        losses = pipe.train(data(minibatches)).losses + pipe.train(data(minibatches)).losses
        return losses, pipe.state_dict()

    there = over_gloo(partial(run, "distributed"), sum(replicas))
    assert all(losses == there[0][0] for losses, _ in there)
    assert not any(different(weights, there[0][1]) for _, weights in there)
    return there[0], run("threads")


@pytest.mark.parametrize(("replicas", "minibatches"), [([3], 7), ([2, 1], 5), ([1, 2], 5)])
def test_processes_of_torchrun_train_as_threads_do(replicas: list[int], minibatches: int) -> None:
    there, here = over_gloo_and_here(replicas, minibatches)
    assert there[0] == here[0]
    assert different(there[1], here[1]) == []


def test_torchrun_evaluates_replicas() -> None:
    def run(transport: str) -> float:
        pipe = replicated(mlp(6, 8, 3), [2], [2], transport=transport)
        pipe.train(data(4))
        return pipe.evaluate(data(3))

    assert over_gloo(partial(run, "distributed"), 2) == [run("threads")] * 2


def test_torchrun_refuses_a_run_that_leaves_a_process_behind() -> None:
    def run() -> None:
        replicated(mlp(6, 8, 3), [2], [2], transport="distributed").train(data(1))

    with pytest.raises(ValueError, match="nothing to do for worker 1"):
        over_gloo(run, 2)


# --- Any replicas --------------------------------------------------------------------------------


@settings(max_examples=15)
@given(
    st.lists(st.integers(1, 3), min_size=1, max_size=3),
    st.integers(1, 8),
    st.booleans(),
)
def test_any_replicas_train_twice_the_same(
    replicas: list[int], minibatches: int, synced: bool
) -> None:
    runs = []
    for _ in range(2):
        pipe = replicated(
            mixed(), replicas, BALANCES[len(replicas)], variant={"vertical_sync": synced}
        )
        runs.append((pipe.train(data(minibatches)).losses, pipe.state_dict()))
    assert runs[0][0] == runs[1][0]
    assert different(runs[0][1], runs[1][1]) == []
