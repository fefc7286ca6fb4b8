import pandas as pd
import pytest
import torch

from pipekit.datasets import digits
from pipekit.papers.gpipe import consistency


def test_the_study_compares_equal_seeds_and_other_seeds() -> None:
    frame, same, unsplit = consistency.train_all([0, 1], [2], [1, 2], microbatches=2, epochs=1)
    assert frame["what"].value_counts()[consistency.PLAIN] == 2
    assert set(frame["partitions"]) == {0, 1, 2, 4}
    assert same < 1e-6
    assert 0 < unsplit < 1e-4


def test_deviations_are_in_the_baselines_standard_deviations() -> None:
    rows = [(consistency.PLAIN, 0, 0, 90.0, 1.0), (consistency.PLAIN, 0, 1, 92.0, 3.0)]
    rows += [("GPipe", 4, 2, 94.0, 1.0), ("GPipe", 8, 2, 91.0, 1.0)]
    rows += [("GPipe, bfloat16", 4, 2, 10.0, 2.0)]
    frame = pd.DataFrame(rows, columns=["what", "partitions", "seed", "accuracy", "loss"])
    apart = consistency.deviations(frame)["deviations"]
    assert apart.to_dict() == pytest.approx({4: 3 / 2**0.5, 8: 0})
    assert consistency.bfloat16_deviation(frame) == pytest.approx(1 / 2**0.5)


def test_cutting_minibatches_moves_weights_by_rounding_only() -> None:
    training = consistency.recipe(seed=0, epochs=1)
    exact = consistency.in_float64(training)
    assert 0 < consistency.moved_by_cutting(exact, 4) < 1e-12
    assert {p.dtype for p in training.model.parameters()} == {torch.float32}
    smooth = consistency.without_kinks(training).model
    assert not any(isinstance(layer, torch.nn.ReLU | torch.nn.MaxPool2d) for layer in smooth)
    assert smooth(torch.randn(2, 1, 8, 8)).shape == (2, 10)


def test_plain_sgd_gives_the_weights_that_gpipe_gives() -> None:
    batches = digits().batches(32)[:2]
    for difference in consistency.weight_differences(consistency.network(0), batches, [1, 4], 4):
        assert difference < 1e-6


def test_layers_pass_on_bfloat16_and_keep_float32_weights() -> None:
    model = consistency.in_bfloat16(consistency.network(0))
    x = torch.randn(2, 1, 8, 8)
    assert model[:-1](x).dtype == torch.bfloat16
    assert model(x).dtype == torch.float32
    assert {p.dtype for p in model.parameters()} == {torch.float32}
