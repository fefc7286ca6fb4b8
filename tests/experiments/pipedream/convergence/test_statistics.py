import math

import numpy as np
import pandas as pd
import pytest

from experiments.pipedream.convergence.statistics import (
    distance_in_std,
    each_seed,
    epochs_to,
    error_of_distance,
    largest_lr,
    summary,
)


def frame(method: str, *runs: list[float], lr: float = 0.01, loss: float = 1.0) -> pd.DataFrame:
    """Return what trainings of so many accuracies, one a seed, would look like."""
    return pd.DataFrame(
        {
            **{"method": method, "lr": lr, "depth": 4, "width": 32},
            **{"seed": seed, "epoch": epoch, "accuracy": accuracy, "loss": loss + seed},
        }
        for seed, accuracies in enumerate(runs)
        for epoch, accuracy in enumerate(accuracies)
    )


@pytest.mark.parametrize(
    ("accuracies", "target", "epochs"),
    [
        ([10.0, 50.0, 90.0], 70.0, 1.5),
        ([10.0, 50.0, 90.0], 50.0, 1.0),
        ([10.0, 80.0, 60.0, 90.0], 70.0, 6 / 7),  # the first time counts
        ([10.0, 20.0], 5.0, 0.0),
        ([10.0, 20.0], 30.0, math.inf),
        ([10.0, math.nan], 30.0, math.inf),
    ],
)
def test_a_target_is_reached_on_the_line_between_two_epochs(
    accuracies: list[float], target: float, epochs: float
) -> None:
    assert epochs_to(accuracies, target) == pytest.approx(epochs)


def test_the_summary_takes_means_and_sample_deviations_over_seeds() -> None:
    runs = frame("a", [0.0, 100.0], [0.0, 50.0, 100.0])
    row = summary(runs, target=75.0).iloc[0]
    assert row["seeds"] == row["reached"] == 2
    assert row["epochs"] == pytest.approx((0.75 + 1.5) / 2)
    assert row["epochs_std"] == pytest.approx(0.75 / math.sqrt(2))
    assert row["accuracy"] == 100
    assert row["loss"] == 1.5


def test_one_seed_that_never_gets_there_makes_the_mean_infinite() -> None:
    row = summary(frame("a", [0.0, 100.0], [0.0, 50.0]), target=75.0).iloc[0]
    assert row["reached"] == 1
    assert math.isinf(row["epochs"])
    assert math.isnan(row["epochs_std"])


def test_settings_are_not_mixed() -> None:
    both = pd.concat([frame("a", [0.0, 100.0]), frame("a", [0.0, 20.0], lr=0.1)])
    assert each_seed(both, 50.0)["accuracy"].tolist() == [100.0, 20.0]
    assert len(summary(both, 50.0)) == 2


def test_the_largest_rate_is_one_at_which_all_the_methods_learn() -> None:
    runs = [
        frame("a", [0.0, 90.0], lr=0.01),
        frame("b", [0.0, 80.0], lr=0.01),
        frame("a", [0.0, 90.0], lr=0.03),
        frame("b", [0.0, 60.0], lr=0.03),
        frame("a", [0.0, 90.0], lr=0.1),
        frame("b", [0.0, 10.0], lr=0.1),
    ]
    table = summary(pd.concat(runs), target=75.0)
    assert largest_lr(table, ["a", "b"], least=50.0) == 0.03
    assert largest_lr(table, ["a"], least=50.0) == 0.1
    assert largest_lr(table, ["a", "b"], least=95.0) == 0.01  # at none: the smallest


def test_a_distance_is_counted_in_pooled_deviations() -> None:
    assert distance_in_std(pd.Series([1.0, 3.0]), pd.Series([5.0, 7.0])) == pytest.approx(
        4 / math.sqrt(2)
    )
    assert math.isinf(distance_in_std(pd.Series([1.0, 1.0]), pd.Series([2.0, 2.0])))


@pytest.mark.parametrize("apart", [0.5, 2.0, 6.0])
def test_a_distance_of_few_seeds_is_wrong_by_no_more_in_95_of_100(apart: float) -> None:
    draw, seeds, within = np.random.default_rng(0), 20, 0
    for _ in range(500):
        one, other = draw.normal(0, 1, seeds), draw.normal(apart, 1, seeds)
        found = distance_in_std(pd.Series(one), pd.Series(other))
        within += abs(found - apart) <= found * error_of_distance(found, seeds)
    assert within / 500 == pytest.approx(0.95, abs=0.04)
