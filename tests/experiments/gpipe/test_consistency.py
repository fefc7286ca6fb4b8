"""What GPipe's consistency is compared by: other precisions, batch norm, the big trainings."""

import pytest
import torch

from experiments.gpipe import consistency, imagenet
from experiments.study.training import learning_rates
from pipekit import Watch
from pipekit.datasets import digits
from pipekit.plans import Recompute


def test_other_precisions_leave_the_training_alone() -> None:
    training = consistency.recipe(seed=0, epochs=1)
    exact, half = consistency.in_float64(training).model, consistency.in_bfloat16(training).model
    assert {p.dtype for p in exact.parameters()} == {torch.float64}
    assert {p.dtype for p in training.model.parameters()} == {torch.float32}
    x = torch.randn(2, 1, 8, 8)
    assert half[:-1](x).dtype == torch.bfloat16
    assert half(x).dtype == torch.float32
    smooth = consistency.without_kinks(training).model
    assert not any(isinstance(layer, torch.nn.ReLU | torch.nn.MaxPool2d) for layer in smooth)
    assert smooth(x).shape == (2, 10)


@pytest.mark.parametrize("recompute", ["never", "except_last", "always"])
def test_moving_averages_count_a_whole_minibatch_once(recompute: Recompute) -> None:
    found = consistency.moving_averages(digits().batches(32)[:3], 3, 4, recompute)
    assert found["own"] < 1e-6
    assert found["counted"] == 1
    assert found["unsplit"] > 1e-5  # the second layer sees other inputs


def test_the_learning_rate_falls_every_three_epochs() -> None:
    training = imagenet.ImageNet(batch_rows=1000)
    optimizer = training.optimizer([torch.nn.Parameter(torch.zeros(1))])
    rates = learning_rates(optimizer, training.scheduler(optimizer, steps_an_epoch=2), 14)
    assert rates == [1.25] * 6 + [1.25 * 0.97] * 6 + [1.25 * 0.97**2] * 2


@pytest.mark.long
def test_both_trainings_run_on_a_small_network() -> None:
    torch.manual_seed(0)
    model = imagenet.giant_amoebanet(normal_cells=3, filters=8, classes=5)
    batch = torch.randn(8, 3, 32, 32), torch.arange(8) % 5
    pipeline = imagenet.ImageNet(batch_rows=8).pipeline(model, 2, microbatches=2, replicas=2)
    assert torch.isfinite(
        torch.tensor(pipeline.train([batch] * 2, watch=Watch(trace=False)).losses)
    ).all()
    model.load_state_dict(pipeline.state_dict())
    tuned = imagenet.fine_tuning(model, 2, 0.01, 1e-4, microbatches=2)
    tuned.train([(batch[0], batch[1] % 2)], watch=Watch(trace=False))
    assert tuned.state_dict()[next(reversed(tuned.state_dict()))].shape == (2,)
