import math

import pandas as pd
import pytest

from experiments.pipedream.convergence import time_to_accuracy
from experiments.pipedream.convergence.time_to_accuracy import (
    FIGURES,
    curves,
    epoch_hours,
    factors,
    is_product,
    ratio,
)
from experiments.pipedream.convergence.trainings import ASP, METHODS
from experiments.pipedream.table1.calibration import bsp_speedup

OURS, BSP = FIGURES["12"][:2]
ASYNCHRONOUS = next(arm for arm in FIGURES["12"] if arm.method == ASP)


@pytest.fixture
def course() -> pd.DataFrame:
    """Return two seeds of two methods; BSP's second one never gets to 50 %."""
    runs = {OURS.method: ([10, 60, 90], [10, 40, 80]), BSP.method: ([10, 20, 70], [10, 20, 30])}
    return pd.DataFrame(
        {"method": method, "seed": seed, "epoch": epoch, "accuracy": float(accuracy)}
        for method, seeds in runs.items()
        for seed, accuracies in enumerate(seeds)
        for epoch, accuracy in enumerate(accuracies)
    )


def test_every_curve_names_a_method_with_as_many_workers() -> None:
    for arms in FIGURES.values():
        for arm in arms:
            assert METHODS[arm.method].worker_count == arm.setting.workers


def test_inception_on_cluster_a_is_one_method_for_both_curves() -> None:
    ours, bsp = FIGURES["10b"]
    assert ours.method == bsp.method


def test_hours_are_those_of_table_1s_speedup() -> None:
    hours = {arm: epoch_hours(arm) for arm in (OURS, BSP, ASYNCHRONOUS)}
    # Four workers that never wait are 4 times as fast as one.
    speedup = bsp_speedup(*time_to_accuracy.machines(BSP.setting))
    assert hours[BSP] / hours[ASYNCHRONOUS] == pytest.approx(4 / speedup, rel=1e-6)
    assert hours[ASYNCHRONOUS] < hours[OURS] < hours[BSP]


def test_a_curve_crosses_the_target_at_epochs_times_hours(
    course: pd.DataFrame, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert is_product(course, OURS, 50.0)
    assert is_product(course, BSP, 50.0)  # never, on both clocks
    monkeypatch.setattr(
        time_to_accuracy, "curves", lambda *a: curves(*a).assign(hours=lambda f: f["hours"] + 1)
    )
    assert not is_product(course, OURS, 50.0)


def test_a_ratio_is_the_product_of_its_factors_or_a_bound() -> None:
    epochs = [2.0, 3.0]
    summary = pd.DataFrame({"method": [OURS.method, BSP.method], "epochs": epochs})
    table = factors(summary, {"12": (OURS, BSP)})
    assert table["hours"].tolist() == pytest.approx((table["hours an epoch"] * epochs).tolist())
    found = ratio(table, "12", OURS.name, BSP.name, trained=10)
    assert found.epochs == 1.5
    assert found.time == pytest.approx(1.5 * epoch_hours(BSP) / epoch_hours(OURS))
    assert not found.bound

    never = ratio(table.replace(3.0, math.inf), "12", OURS.name, BSP.name, trained=10)
    assert never.bound
    assert never.epochs == 5
    assert str(never).startswith("at least ")
