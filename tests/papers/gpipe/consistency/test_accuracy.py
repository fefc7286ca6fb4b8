import pandas as pd
import pytest
import torch

from pipekit.papers.gpipe.consistency import accuracy
from pipekit.papers.gpipe.consistency.accuracy import BFLOAT16, GPIPE, PLAIN, Study
from pipekit.papers.gpipe.consistency.gradients import network


def test_the_study_compares_equal_seeds_and_other_seeds() -> None:
    study = accuracy.train_all([0, 1], [2], [1, 2], microbatches=2, epochs=1)
    frame = study.trainings
    assert frame["what"].value_counts().to_dict() == {PLAIN: 2, GPIPE: 2, BFLOAT16: 1}
    assert set(frame["partitions"]) == {0, 1, 2, 4}
    assert study.from_split_loop < 1e-6
    assert 0 < study.from_unsplit_loop < 1e-4


def test_deviations_are_in_the_baselines_standard_deviations() -> None:
    rows = [(PLAIN, 0, 0, 90.0, 1.0), (PLAIN, 0, 1, 92.0, 3.0)]
    rows += [(GPIPE, 4, 2, 94.0, 1.0), (GPIPE, 8, 2, 91.0, 1.0), (BFLOAT16, 4, 2, 10.0, 2.0)]
    columns = ["what", "partitions", "seed", "accuracy", "loss"]
    study = Study(pd.DataFrame(rows, columns=columns), 1e-8, 1e-7)
    assert study.deviations["deviations"].to_dict() == pytest.approx({4: 3 / 2**0.5, 8: 0})
    assert study.bfloat16_deviation == pytest.approx(1 / 2**0.5)
    proxy, paper, no_scaling = accuracy.findings(study, "why", 3, "a.svg")
    assert proxy.value == [pytest.approx(3 / 2**0.5), 1e-7]
    assert paper.value == proxy.value[0]
    assert no_scaling.value == study.bfloat16_deviation
    drawn = accuracy.figure(study)
    assert [trace.name for trace in drawn.data[:2]] == [PLAIN, "GPipe, other seeds"]
    mean, above, below = (trace.y[0] for trace in drawn.data[2:])
    assert (mean, above - mean, mean - below) == (91, pytest.approx(8**0.5), pytest.approx(8**0.5))


def test_cutting_minibatches_moves_weights_by_rounding_only() -> None:
    training = accuracy.recipe(seed=0, epochs=1)
    exact = accuracy.in_float64(training)
    assert 0 < accuracy.moved_by_cutting(exact, 4) < 1e-12
    assert {p.dtype for p in training.model.parameters()} == {torch.float32}
    smooth = accuracy.without_kinks(training).model
    assert not any(isinstance(layer, torch.nn.ReLU | torch.nn.MaxPool2d) for layer in smooth)
    assert smooth(torch.randn(2, 1, 8, 8)).shape == (2, 10)


def test_layers_pass_on_bfloat16_and_keep_float32_weights() -> None:
    model = accuracy.in_bfloat16(network(0))
    x = torch.randn(2, 1, 8, 8)
    assert model[:-1](x).dtype == torch.bfloat16
    assert model(x).dtype == torch.float32
    assert {p.dtype for p in model.parameters()} == {torch.float32}
