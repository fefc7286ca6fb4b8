import json
from dataclasses import replace
from pathlib import Path

import pytest

from experiments.pipedream.convergence.trainings import (
    ASP,
    BSP,
    METHODS,
    NAIVE,
    SGD,
    STASHING,
    VERTICAL_SYNC,
    DigitsTraining,
    train_all,
    training,
)
from experiments.study.differences import bit_equal, relative_difference
from pipekit.schedules import check

WORKERS = {"1-1-1-1": 4, "2-1-1": 4, "7-1": 8, "9-5-1-1": 16, "4 w": 4, "8 w": 8, "16 w": 16}


@pytest.mark.parametrize("name", METHODS)
def test_methods_have_the_workers_of_their_names(name: str) -> None:
    schedule = METHODS[name]
    check(schedule)
    workers = next((count for part, count in WORKERS.items() if f" {part}" in name), 1)
    assert schedule.worker_count == workers


def test_vertical_sync_is_asp_without_a_network_and_not_bsp() -> None:
    first = DigitsTraining(VERTICAL_SYNC, seed=0, epochs=1, width=8)
    synced, asynchronous, bsp, naive, stashing = (
        training(replace(first, method=method)).weights[-1]
        for method in (VERTICAL_SYNC, ASP, BSP, NAIVE, STASHING)
    )
    assert bit_equal(synced, asynchronous)
    assert relative_difference(synced, bsp) > 0.01
    assert relative_difference(naive, stashing) > 0.01


@pytest.mark.long
def test_trainings_are_kept_and_not_run_again(tmp_path: Path) -> None:
    cases = [
        DigitsTraining(SGD, seed=0, epochs=2, width=8),
        DigitsTraining(SGD, seed=0, epochs=1, width=8),
    ]
    first = train_all(cases[:1], tmp_path)
    assert first["epoch"].tolist() == [0, 1, 2]
    assert first["accuracy"].iloc[0] < 30 < first["accuracy"].iloc[2]
    assert first["loss"].isna().tolist() == [True, False, False]

    path = tmp_path / f"{cases[0].name}.json"
    record = json.loads(path.read_text())
    record["accuracies"][2] = 0.125
    path.write_text(json.dumps(record))
    both = train_all(cases, tmp_path)
    assert both["accuracy"].iloc[2] == 12.5
    assert both["epoch"].tolist() == [0, 1, 2, 0, 1]
    assert both["accuracy"].tolist()[3:] == first["accuracy"].tolist()[:2]
