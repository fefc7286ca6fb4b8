"""Stages on several workers: the gradients are summed, and the weights are those of one model."""

import copy
from collections.abc import Sequence
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

import pipekit as pk
from pipekit import schedules
from tests.engine.examples import (
    OPTIMIZERS,
    Batches,
    OptimizerFactory,
    Trained,
    data,
    different,
    mlp,
    nesterov,
    pipeline,
    sgd,
    trained,
    unlike,
)
from tests.engine.gloo import over_gloo
from tests.engine.parametrized import TRANSPORTS

BALANCES = {1: [8], 2: [4, 4], 3: [3, 2, 3]}  # of mixed(), by the number of stages
Weights = dict[str, Tensor]


def replicated(
    model: nn.Sequential, replicas: Sequence[int], balance: Sequence[int], **options: Any
) -> pk.Pipeline:
    """A pipeline by PipeDream's schedule with the tests' defaults."""
    variant = options.pop("variant", {})
    return pipeline(model, schedules.pipedream(replicas, **variant), balance, **options)


def joined(batches: Batches) -> Batches:
    """The first and the second batch as one, the third and the fourth, and so on."""
    return [
        (torch.cat((x, more_x)), torch.cat((y, more_y)))
        for (x, y), (more_x, more_y) in zip(batches[::2], batches[1::2], strict=True)
    ]


def assert_close(
    found: Weights, expected: Weights, rtol: float = 1.3e-6, atol: float = 1e-5
) -> None:
    """By default as close as :func:`torch.testing.assert_close` has float32."""
    assert list(found) == list(expected)
    for name in expected:
        torch.testing.assert_close(found[name], expected[name], rtol=rtol, atol=atol)


# --- Data parallelism is PyTorch's ---------------------------------------------------------------


def by_ddp(
    model: nn.Sequential, batches: Batches, workers: int, optimizer: OptimizerFactory
) -> list[Weights]:
    """The weights after every step of DistributedDataParallel; worker j has every j-th batch."""

    def run() -> list[Weights]:
        dist.init_process_group("gloo")
        own = copy.deepcopy(model)
        parallel = DistributedDataParallel(own)
        made = optimizer(list(own.parameters()))
        after = []
        for x, y in batches[dist.get_rank() :: workers]:
            made.zero_grad()
            nn.functional.mse_loss(parallel(x), y).backward()
            made.step()
            after.append({name: t.clone() for name, t in own.state_dict().items()})
        return after

    first, *others = over_gloo(run, workers)
    for each in others:
        assert not any(different(a, b) for a, b in zip(each, first, strict=True))
    return list(first)


@pytest.mark.parametrize("name", ["nesterov", "adam"])
def test_two_workers_train_as_ddp_does_to_the_bit_after_every_step(name: str) -> None:
    """It halves the gradients and adds, we add and halve: dividing by two rounds nothing."""
    model, batches = mlp(6, 8, 3), data(10)
    expected = by_ddp(model, batches, 2, OPTIMIZERS[name])
    pipe = replicated(model, [2], [2], optimizer=OPTIMIZERS[name])
    for step, weights in enumerate(expected):
        pipe.train(batches[2 * step : 2 * step + 2])
        assert different(pipe.state_dict(), weights) == [], f"step {step}"
    at_once = replicated(model, [2], [2], optimizer=OPTIMIZERS[name])
    at_once.train(batches)
    assert different(at_once.state_dict(), expected[-1]) == []


def test_a_loss_that_is_a_sum_is_summed_over_the_replicas() -> None:
    batches, summing = data(4), nn.MSELoss(reduction="sum")
    small: OptimizerFactory = lambda p: torch.optim.SGD(p, lr=1e-3)  # noqa: E731
    pipe = replicated(mlp(6, 8, 3), [2], [2], loss=summing, optimizer=small)
    whole = replicated(mlp(6, 8, 3), [1], [2], loss=summing, optimizer=small)
    pipe.train(batches)
    whole.train(joined(batches))
    assert_close(pipe.state_dict(), whole.state_dict())


# --- Tables of one's own --------------------------------------------------------------------------


@TRANSPORTS
def test_a_worker_may_have_a_replicated_stage_and_another(transport: str) -> None:
    """Stage 1 is on both workers, and sums two minibatches; stage 0 on the first, and sums one."""
    schedule = schedules.parse("""
        # mine; batches of 1
        worker 0         | F0 F0@1 F1 B0@1^1@1 B0^ B1^
        worker 1 stage 1 | F1 B1^
        """)
    batches, model = data(2), mlp(6, 8, 3)
    pipe = pipeline(model, schedule, [1, 1], optimizer=sgd, transport=transport)
    losses = pipe.train(batches).losses
    first, second = list(model[0].parameters()), list(model[1].parameters())
    gradients = []
    for (x, y), expected in zip(batches, losses, strict=True):
        loss = nn.functional.mse_loss(model(x), y)
        assert loss.item() == expected, "both minibatches see the initial weights"
        gradients.append(torch.autograd.grad(loss, [*first, *second]))
    one, both = sgd(first), sgd(second)
    for parameter, a, b in zip(second, gradients[0][2:], gradients[1][2:], strict=True):
        parameter.grad = (a + b) / 2
    both.step()
    for each in gradients:
        for parameter, gradient in zip(first, each, strict=False):
            parameter.grad = gradient
        one.step()
    assert different(pipe.state_dict(), dict(model.state_dict())) == []


# --- Pipelines side by side ----------------------------------------------------------------------


# --- ASP -----------------------------------------------------------------------------------------


def by_hand(model: nn.Sequential, batches: Batches, delay: int) -> Trained:
    """Update k + 1 takes the gradient of minibatch k at the weights after k - delay updates."""
    past, losses = [copy.deepcopy(model)], []
    newest = copy.deepcopy(model)
    optimizer = nesterov(list(newest.parameters()))
    for k, (x, y) in enumerate(batches):
        old = copy.deepcopy(past[max(0, k - delay)])
        loss = nn.functional.mse_loss(old(x), y)
        gradients = torch.autograd.grad(loss, list(old.parameters()))
        for parameter, gradient in zip(newest.parameters(), gradients, strict=True):
            parameter.grad = gradient
        optimizer.step()
        losses.append(loss.item())
        past.append(copy.deepcopy(newest))
    return Trained(losses, dict(newest.state_dict()))


@pytest.mark.parametrize(("workers", "delay"), [(1, 0), (2, 1), (3, 2), (3, 5)])
def test_asp_is_the_equation_with_a_delay(workers: int, delay: int) -> None:
    pipe = pipeline(mlp(6, 8, 3), schedules.asp(workers, delay), [2])
    assert unlike(trained(pipe, data(11)), by_hand(mlp(6, 8, 3), data(11), delay)) == []


# --- Clipping ------------------------------------------------------------------------------------


@TRANSPORTS
def test_the_norm_is_over_the_whole_model_and_counts_each_replica_once(transport: str) -> None:
    batches, limit = data(4), 0.05
    model = mlp(6, 8, 3)
    optimizer = nesterov(list(model.parameters()))
    for x, y in batches:
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), limit)
        assert norm > limit, "it does clip"
        optimizer.step()
    pipe = pipeline(
        mlp(6, 8, 3),
        schedules.replicate(schedules.flush(2, 2), 2),
        [1, 1],
        transport=transport,
        clip_norm=limit,
    )
    pipe.train(batches)
    assert_close(pipe.state_dict(), dict(model.state_dict()))


@TRANSPORTS
def test_a_worker_without_tasks_has_no_part_in_the_norm(transport: str) -> None:
    pipe = replicated(mlp(6, 8, 3), [3], [2], clip_norm=0.05, transport=transport)
    reference = replicated(mlp(6, 8, 3), [2], [2], clip_norm=0.05)
    assert unlike(trained(pipe, data(2)), trained(reference, data(2))) == []


# --- Parameters in unusual places ----------------------------------------------------------------


class Checkpointed(nn.Module):
    """Uses one weight in several nested backwards, so that its gradient comes in parts."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((6,), 0.5))

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(3):
            x = checkpoint(lambda y: y * self.weight, x, use_reentrant=True)
        return x


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
def test_a_gradient_that_comes_in_parts_is_refused() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 6), Checkpointed(), nn.Linear(6, 3))
    (batch,) = data(1)
    with pytest.raises(ValueError, match="use_reentrant=False"):
        replicated(model, [2], [3], optimizer=sgd).train([batch, batch])


@pytest.mark.filterwarnings("ignore:the rows of a batch are not independent")
def test_a_layer_that_only_some_minibatches_use() -> None:
    """Its gradient is the mean all the same: the other minibatch's is zero."""
    model = nn.Sequential(nn.Linear(6, 6), Sometimes(), nn.Linear(6, 3))
    batches = [(x.abs() * (1 if k % 2 else -1), y) for k, (x, y) in enumerate(data(6))]
    torch.manual_seed(0)
    pipe = replicated(model, [2], [3], optimizer=sgd)
    whole = pipeline(model, schedules.replicate(schedules.flush(1, 1), 2), [3], optimizer=sgd)
    pipe.train(batches)
    whole.train(joined(batches))
    assert different(pipe.state_dict(), whole.state_dict()) == []


class Sometimes(nn.Module):
    """Runs a layer if its input begins with a positive number."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.linear = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.linear(x) if x[0, 0] > 0 else x
        return y
