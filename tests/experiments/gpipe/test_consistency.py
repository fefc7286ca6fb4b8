"""What GPipe's consistency is compared by: other precisions, batch norm."""

import pytest
import torch

from experiments.gpipe import consistency
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
