"""Trainings of digits by PipeDream's methods, epochs apart, hours of an epoch, and tuned rates."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from experiments.pipedream import convergence
from experiments.pipedream.convergence import (
    ASP,
    BSP,
    FIRST_TUNING_SEED,
    NAIVE,
    SGD,
    STASHING,
    VERTICAL_SYNC,
    Digits,
    distance_in_std,
    error_of_distance,
    training,
)
from experiments.pipedream.tuned import tuned
from experiments.study import bit_equal, relative_difference
from pipekit.datasets import mnist


@pytest.mark.long
def test_vertical_sync_is_asp_without_a_network_and_not_bsp() -> None:
    first = Digits(VERTICAL_SYNC, seed=0, epochs=1, width=8)
    synced, asynchronous, bsp, naive, stashing = (
        training(replace(first, method=method)).weights[-1]
        for method in (VERTICAL_SYNC, ASP, BSP, NAIVE, STASHING)
    )
    assert bit_equal(synced, asynchronous)
    assert relative_difference(synced, bsp) > 0.01
    assert relative_difference(naive, stashing) > 0.01


def test_a_course_begins_with_the_untrained_network() -> None:
    points = convergence.train(Digits(SGD, seed=0, epochs=2, width=8)).points
    assert points["epoch"] == [0, 1, 2]
    begin, _, last = points["accuracy"]
    assert begin is not None
    assert last is not None
    assert begin < 30 < last
    assert [loss is None for loss in points["loss"]] == [True, False, False]


def test_a_distance_is_counted_in_pooled_deviations() -> None:
    apart = distance_in_std(pd.Series([1.0, 3.0]), pd.Series([5.0, 7.0]))
    assert apart == pytest.approx(4 / math.sqrt(2))
    assert math.isinf(distance_in_std(pd.Series([1.0, 1.0]), pd.Series([2.0, 2.0])))


@pytest.mark.parametrize("apart", [0.5, 6.0])
def test_a_distance_of_few_seeds_is_wrong_by_no_more_in_95_of_100(apart: float) -> None:
    draw, seeds, within = np.random.default_rng(0), 20, 0
    for _ in range(500):
        one, other = draw.normal(0, 1, seeds), draw.normal(apart, 1, seeds)
        found = distance_in_std(pd.Series(one), pd.Series(other))
        within += abs(found - apart) <= found * error_of_distance(found, seeds)
    assert within / 500 == pytest.approx(0.95, abs=0.04)


def test_a_tuning_seed_is_judged_by_images_that_it_does_not_train_on() -> None:
    whole, own = mnist(), Digits(SGD, FIRST_TUNING_SEED, 1).data
    assert torch.equal(torch.cat([own.train_inputs, own.test_inputs]), whole.train_inputs)
    assert torch.equal(torch.cat([own.train_targets, own.test_targets]), whole.train_targets)
    assert torch.equal(Digits(SGD, 0, 1).data.test_inputs, whole.test_inputs)


def trainings(epochs_to_the_target: Callable[[float], float]) -> Any:
    """Return what stands for trainings that are at 80 % after so many epochs, by their rate."""

    def run(settings: Sequence[Digits]) -> pd.DataFrame:
        return pd.concat(
            pd.DataFrame(
                {"epoch": [0, 10], "accuracy": [0.0, 800 / epochs_to_the_target(one.lr)]}
            ).assign(lr=one.lr, seed=one.seed)
            for one in settings
        )

    return SimpleNamespace(run=run)


@pytest.mark.parametrize("best", [0.00125, 0.01, 0.32])
def test_the_rate_that_is_soonest_there_is_found_beyond_the_border(best: float) -> None:
    assert tuned(trainings(lambda rate: 2 + abs(rate - best)), SGD) == pytest.approx(best)
