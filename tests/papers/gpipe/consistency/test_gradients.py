from pipekit.datasets import digits
from pipekit.papers.gpipe.consistency import gradients

BATCHES = digits().batches(32)[:2]


def test_gradients_are_equal_for_all_partitions_and_rounded_otherwise_when_unsplit() -> None:
    found = gradients.gradient_differences(BATCHES[0], [1, 4], 4)
    assert found["among partitions"].max() < 1e-6
    unsplit = found["from one backward, unsplit"]
    assert 0 < unsplit["float64"] < 1e-14 < unsplit["float32"] < 1e-6


def test_pipelines_side_by_side_give_the_whole_minibatchs_gradient() -> None:
    for difference in gradients.replicated_differences(BATCHES[0], [1, 2], 4):
        assert difference < 1e-6


def test_plain_sgd_gives_the_weights_that_gpipe_gives() -> None:
    for difference in gradients.weight_differences(BATCHES, [1, 4], 4):
        assert difference < 1e-6
