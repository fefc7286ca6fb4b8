"""Rates tuned for each method: on images held out, and on beyond the border."""

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
import torch

from experiments.pipedream.convergence import FIRST_TUNING_SEED, SGD, Digits
from experiments.pipedream.tuned import tuned
from pipekit.datasets import mnist


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
