"""The quickstart's network, and how far trainings of it are from the plain loop."""

import torch

from experiments.quickstart import difference, digits_recipe
from experiments.study import train_pipeline, train_plain
from pipekit import schedules
from pipekit.datasets import mnist


def test_the_same_training_is_told_from_another() -> None:
    recipe = digits_recipe(mnist(rows=80, test_rows=20), 20, epochs=2, lr=0.005, momentum=0.9)
    flush = train_pipeline(recipe, "Flush", schedules.flush(2, 4))
    late = train_pipeline(recipe, "PipeDream", schedules.pipedream(2))
    same, other = (
        difference(one, train_plain(recipe, one.microbatches, one.threads)) for one in (flush, late)
    )
    assert same["bit-equal"]
    assert same["max |Δw|, end"] == same["‖Δw‖/‖w‖, end"] == same["Δloss"] == 0
    assert not other["bit-equal"]
    assert other["max |Δw|, end"] != 0


def test_a_seed_gives_the_same_weights() -> None:
    data = mnist(rows=80, test_rows=20)
    one, same, other = (
        digits_recipe(data, 20, 1, 0.1, 0.9, seed).model.get_parameter("0.weight")
        for seed in (3, 3, 4)
    )
    assert torch.equal(one, same)
    assert not torch.equal(one, other)
