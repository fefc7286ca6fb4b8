"""Networks as people bring them: recorded, cut, trained, and equal to a plain loop to the bit."""

import copy
import warnings
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pipekit import Pipeline, schedules
from pipekit.partition.recording.batch import call
from pipekit.partition.recording.templates import tensors
from pipekit.partition.stages import stages
from tests.partition.networks import FAST, NETWORKS, build

OPTIMIZER = partial(torch.optim.SGD, lr=0.01, momentum=0.9)
SUMMED_IN_ANOTHER_ORDER = {"bart"}
"""Weights with three uses or more on several stages: each stage sums its own before they meet."""

NAMES = [pytest.param(name, marks=() if name in FAST else pytest.mark.models) for name in NETWORKS]


def loss(output: Any, target: Tensor) -> Tensor:
    """Weigh all floating-point outputs, each number with one of its own."""
    total = torch.zeros(())
    for tensor in tensors(output):
        if tensor.is_floating_point():
            weights = torch.linspace(-1, 1, tensor[0].numel()).view_as(tensor[0])
            total = total + ((tensor + target[0]) * weights).square().mean()
    return total


def plain_loop(model: nn.Module, batches: list[tuple[Any, Tensor]]) -> list[float]:
    optimizer = OPTIMIZER(model.parameters())
    losses = []
    for batch, target in batches:
        optimizer.zero_grad()
        value = loss(call(model, batch), target)
        value.backward()
        optimizer.step()
        losses.append(value.item())
    return losses


@pytest.mark.parametrize("cuts", [2, 3])
@pytest.mark.parametrize("name", NAMES)
def test_a_network_as_people_bring_it_trains_as_a_plain_loop_does(name: str, cuts: int) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what libraries say of themselves
        model, batch = build(name)
        judge = copy.deepcopy(model)
        layers = stages(model, batch)
    assert layers.state_dict().keys() == model.state_dict().keys()

    rows = len(tensors(batch)[0])
    batches = [(batch, torch.full((rows,), 0.1 * number)) for number in range(2)]
    pipeline = Pipeline(
        layers, lambda n: schedules.flush(cuts, 1, n), optimizer=OPTIMIZER, loss=loss
    )
    run = pipeline.train(batches)

    losses = plain_loop(judge, batches)
    assert run.losses == (pytest.approx(losses) if name in SUMMED_IN_ANOTHER_ORDER else losses)
    trained = pipeline.state_dict()
    assert list(trained) == list(layers.state_dict())
    for key, tensor in judge.state_dict().items():
        if name in SUMMED_IN_ANOTHER_ORDER:
            torch.testing.assert_close(trained[key], tensor)
        else:
            assert torch.equal(trained[key], tensor), key
    judge.load_state_dict(trained)
