import statistics

import pandas as pd
import pytest
import torch
from torch import nn

from experiments.quickstart import comparison
from experiments.study.training import PipelineTraining, Recipe, train_pipeline
from pipekit import schedules
from pipekit.datasets import digits
from pipekit.traces import Trace


@pytest.fixture(scope="module")
def trainings() -> list[PipelineTraining]:
    torch.manual_seed(0)
    recipe = Recipe(
        model=nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10)),
        data=digits(rows=100, test_rows=20),
        optimizer=lambda p: torch.optim.SGD(p, lr=0.1),
        batch_rows=20,
        epochs=2,
    )
    return [
        train_pipeline(recipe, "Flush", schedules.flush(2, 4)),
        train_pipeline(recipe, "PipeDream", schedules.pipedream(2)),
    ]


def test_there_is_one_plain_loop_for_equal_microbatches_and_threads(
    trainings: list[PipelineTraining],
) -> None:
    loops = comparison.references([*trainings, *trainings])
    assert [loop.microbatches for loop in loops.values()] == [4, 1]
    assert all(comparison.key(loop) == key for key, loop in loops.items())


def test_the_difference_table_tells_the_same_training_from_another(
    trainings: list[PipelineTraining],
) -> None:
    table = comparison.difference_table(trainings, comparison.references(trainings))
    same, other = table.to_dict("records")
    assert same["bit-equal"]
    assert same["max |Δw|, end"] == same["‖Δw‖/‖w‖, end"] == same["Δloss"] == 0
    assert not other["bit-equal"]
    assert other["max |Δw|, end"] > 1e-6
    assert set(table["label"]) == {"measured"}


def test_a_verdict_says_equal_or_how_far(trainings: list[PipelineTraining]) -> None:
    table = comparison.difference_table(trainings, comparison.references(trainings))
    same, other = comparison.verdicts(table)
    assert same == "Flush: equal to the plain loop to the bit in 1 of 1 run (measured)"
    assert other.startswith("PipeDream: equal to the plain loop to the bit in 0 of 1 run; weights")


def test_the_memory_table_says_what_was_measured_and_what_is_exact(
    trainings: list[PipelineTraining],
) -> None:
    flush, pipedream = comparison.memory_table(trainings * 2).to_dict("records")
    assert flush["weight slots (measured)"] == flush["weight slots (exact)"] == "1 1"
    assert flush["in flight (measured)"] == flush["in flight (exact)"] == "2 1"
    assert flush["examples in flight (measured)"] == "10 5"
    assert pipedream["weight slots (measured)"] == pipedream["weight slots (exact)"] == "2 1"
    assert pipedream["examples in flight (measured)"] == "40 20"


def test_the_speed_table_has_gpipes_bubble(trainings: list[PipelineTraining]) -> None:
    flush = comparison.speed_table(trainings).iloc[0]
    assert flush["bubble of makespan, % (exact)"] == pytest.approx(100 * (2 - 1) / (4 + 2 - 1))
    run = trainings[0].run
    assert flush["bubble of makespan, % (measured)"] == 100 * run.trace.bubble
    seconds = statistics.median(trainings[0].epoch_s)
    assert flush["examples/s (measured)"] == pytest.approx(80 / seconds)  # 4 batches of 20 rows


def test_curves_name_every_point(trainings: list[PipelineTraining]) -> None:
    losses = comparison.loss_curves(trainings, window=2)
    flush = losses[losses["method"] == "Flush"]
    assert list(flush["batch"]) == list(range(1, 9))
    raw = trainings[0].losses
    assert list(flush["loss"][:2]) == pytest.approx([raw[0], (raw[0] + raw[1]) / 2])
    points = comparison.accuracy_curves(trainings)
    assert list(points["epoch"]) == [1, 2, 1, 2]
    assert points["accuracy"].between(0, 100).all()


def test_an_excerpt_ends_with_its_microbatches_and_hides_nothing_before_that() -> None:
    whole = Trace.from_schedule(schedules.two_bw(2, 2).take(6))
    part = comparison.excerpt(whole, microbatches=4)
    end = part.frame["end_s"].max()
    pd.testing.assert_frame_equal(part.frame, whole.frame[whole.frame["end_s"] <= end])
    assert set(range(4)) < set(part.frame["microbatch"])
    assert len(part.frame.query("microbatch < 4")) == len(whole.frame.query("microbatch < 4"))
