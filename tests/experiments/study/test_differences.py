"""Distances between sets of tensors, and the gradient of an update by the engine and by hand."""

import pytest
import torch
from torch import nn

from experiments.study.differences import (
    bit_equal,
    largest_difference,
    pipeline_gradients,
    plain_gradients,
    relative_difference,
)
from pipekit import models, schedules

LOSS = nn.CrossEntropyLoss()


def test_gradients_are_those_of_one_backward_for_any_stages_and_replicas(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # with more, sums are split and rounded otherwise
    torch.manual_seed(0)
    model = models.mlp(width=6, depth=3)
    batch = torch.randn(8, 6), torch.arange(8) % 6
    plain = plain_gradients(model, batch, LOSS)
    found = [
        pipeline_gradients(model, [batch], schedules.gpipe(k, 4).take(1), LOSS) for k in (1, 2, 4)
    ]
    assert bit_equal(found[0], found[1])
    assert bit_equal(found[0], found[2])
    twice = schedules.replicate(schedules.gpipe(2, 4), 2)
    for gradient in (*found, pipeline_gradients(model, [batch], twice, LOSS)):
        assert relative_difference(gradient, plain) < 1e-6


def test_two_workers_that_share_an_update_give_the_gradient_of_both_minibatches() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4)).double()
    x, y = torch.randn(4, 3, dtype=torch.float64), torch.tensor([0, 1, 2, 3])
    batches = [(x[:2], y[:2]), (x[2:], y[2:])]
    both = pipeline_gradients(model, batches, schedules.pipedream([2]).take(2), LOSS)
    assert relative_difference(both, plain_gradients(model, (x, y), LOSS)) < 1e-14


def test_distances_are_those_of_all_weights_together() -> None:
    a = {"x": torch.tensor([3.0, 0.0]), "y": torch.tensor([1.0])}
    b = {"x": torch.tensor([0.0, 0.0]), "y": torch.tensor([5.0])}
    assert largest_difference(a, b) == 4
    assert relative_difference(a, b) == 1
    assert not bit_equal(a, b)
    assert bit_equal(a, dict(a))
    assert not bit_equal(a, {"x": a["x"]})
