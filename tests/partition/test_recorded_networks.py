"""Networks as people bring them, recorded: equal to a plain loop to the bit."""

import copy
import warnings
from collections.abc import Iterator
from functools import lru_cache, partial
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pipekit import Pipeline, oracle, schedules
from pipekit.partition.recording.batch import with_shapes
from pipekit.partition.recording.templates import tensors
from pipekit.partition.stages import stages
from tests.engine.examples import values
from tests.partition.networks import FAST, NETWORKS, build
from tests.people.plain import plain_loop

OPTIMIZER = partial(torch.optim.SGD, lr=0.01, momentum=0.9)
SHARING = {"gpt2", "t5", "bart", "twice", "tied"}
"""Weights with several uses, whose gradients have to be summed in the plain loop's order."""


def cases() -> Iterator[Any]:
    """Yield (network, microbatches); slow ones only for ``make models``."""
    for name, m in product(NETWORKS, (1, 2)):
        marks = () if name in FAST else pytest.mark.models
        if m == 1 or name in SHARING:
            yield pytest.param(name, m, marks=marks, id=f"{name}-{m}")


@lru_cache(2)
def recorded(name: str) -> tuple[nn.Module, Any, nn.Sequential]:
    """Return a network as it was before it was recorded, a batch, and its layers."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what libraries say of themselves
        model, batch = build(name)
        return copy.deepcopy(model), batch, stages(model, batch)


def loss(output: Any, target: Tensor) -> Tensor:
    """Weigh all floating-point outputs, each number with one of its own."""
    total = torch.zeros(())
    for tensor in tensors(output):
        if tensor.is_floating_point():
            weights = torch.linspace(-1, 1, tensor[0].numel()).view_as(tensor[0])
            total = total + ((tensor + target[0]) * weights).square().mean()
    return total


@pytest.mark.parametrize(("name", "m"), list(cases()))
def test_a_network_as_people_bring_it_trains_as_a_plain_loop_does(name: str, m: int) -> None:
    model, batch, layers = recorded(name)
    judge = copy.deepcopy(model)
    assert layers.state_dict().keys() == model.state_dict().keys()

    rows = len(tensors(batch)[0])
    batches = [(batch, torch.full((rows,), 0.1 * number)) for number in range(2)]
    pipeline = Pipeline(layers, schedules.flush(3, m), optimizer=OPTIMIZER, loss=loss)
    run = pipeline.train(batches)

    assert run.losses == plain_loop(judge, OPTIMIZER, loss, batches, m)
    trained = pipeline.state_dict()
    assert list(trained) == list(layers.state_dict())
    for key, tensor in judge.state_dict().items():
        assert torch.equal(trained[key], tensor), key
    judge.load_state_dict(trained)


METHODS: dict[str, tuple[Any, int]] = {
    "flush": (schedules.flush(2, 2), 2),
    "2bw": (schedules.two_bw(2, 2), 2),
    "pipedream": (schedules.pipedream(2), 1),
}
FAST_WITH_VERSIONS = {"unet", "tied"}


def with_versions() -> Iterator[Any]:
    """Yield (network, method); most of them only for ``make models``."""
    for name, method in product(NETWORKS, METHODS):
        marks = () if name in FAST_WITH_VERSIONS else pytest.mark.models
        yield pytest.param(name, method, marks=marks, id=f"{name}-{method}")


@pytest.mark.parametrize(("name", "method"), list(with_versions()))
def test_every_method_trains_its_stages_as_the_oracle_does(name: str, method: str) -> None:
    schedule, microbatches = METHODS[method]
    _, batch, layers = recorded(name)
    rows = len(tensors(batch)[0])
    batches = [(batch, torch.full((rows,), 0.1 * number)) for number in range(4)]
    how: dict[str, Any] = {"optimizer": partial(torch.optim.SGD, lr=0.01), "loss": loss}
    pipeline = Pipeline(layers, schedule, **values(**how))
    pipeline.train(batches)
    assert pipeline.balance is not None
    judge = oracle.train(
        layers, batches, method=method, balance=pipeline.balance, microbatches=microbatches, **how
    )
    trained = pipeline.state_dict()
    for key, weight in judge.weights[-1].items():
        assert torch.equal(trained[key.partition(".")[2]], weight)


def with_lengths(batch: Any, length: int) -> Any:
    """Return a batch of texts, so long."""
    return with_shapes(batch, [(len(tensor), length) for tensor in tensors(batch)])
