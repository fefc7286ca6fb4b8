"""The quickstart's network, and how far trainings of it are from the plain loop."""

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
