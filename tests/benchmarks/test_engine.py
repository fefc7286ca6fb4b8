"""The benchmark runs, and says whether weights are equal; its times decide nothing."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

from experiments.benchmarks import engine

SECONDS = {  # in a slow repeat, and in a fast one
    engine.SERIAL: (4.0, 2.0),
    engine.ALL_CORES: (3.2, 1.6),
    engine.LIMIT: (2.0, 1.0),
    engine.THREADS: (2.5, 1.25),
    engine.DDP: (2.2, 1.1),
    engine.DATA_PARALLEL: (2.0, 1.0),
}


@pytest.mark.scripts
@pytest.mark.parametrize("schedule", ["1F1B", "interleaved"])
def test_the_benchmark_compares_our_weights_with_serial_training(
    schedule: str, repository: Path, tmp_path: Path
) -> None:
    case = ["--network", "width 16", "--stages", "2", "--microbatches", "4", "--repeats", "1"]
    case += ["--schedule", schedule, "--output", str(tmp_path)]
    # On a busy machine, spinning takes most of the time.
    environment = {"PYTHONPATH": str(repository), "OMP_WAIT_POLICY": "passive"}
    done = subprocess.run(
        [sys.executable, "-m", "experiments.benchmarks.engine", *case],
        cwd=repository,
        env=os.environ | environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    table = pd.read_csv(tmp_path / "networks.csv").set_index("contestant")
    assert len(table) == 8
    assert (table["seconds"] > 0).all()
    assert table.loc[[engine.THREADS, engine.PROCESSES], "bit_equal"].all()
    record = json.loads((tmp_path / "networks.json").read_text(encoding="utf-8"))
    assert record["label"] == "measured"


def runs(**changed: tuple[float, float]) -> pd.DataFrame:
    rows = [
        ("gpt", 2, repeat, contestant, each)
        for contestant, both in (SECONDS | changed).items()
        for repeat, each in enumerate(both)
    ]
    return pd.DataFrame(rows, columns=["network", "stages", "repeat", "contestant", "seconds"])


def test_ratios_are_between_runs_of_one_repeat() -> None:
    rows = engine.summarise(runs(), passes=3, cores=2).set_index("contestant")
    assert rows.loc[engine.THREADS, "vs_serial_min"] == 1.6
    assert rows.loc[engine.THREADS, "vs_serial_max"] == 1.6
    assert rows.loc[engine.THREADS, "share_of_limit"] == pytest.approx(0.8 / (3 / 4))
    assert rows.loc[engine.DATA_PARALLEL, "vs_ddp"] == pytest.approx(1.1)
    assert rows.loc[engine.LIMIT, "ms"] == 1500
    fewer_cores = engine.summarise(runs(), passes=3, cores=1)
    assert fewer_cores["share_of_limit"].isna().all(), "more stages than cores have no such limit"


def test_the_best_pipeline_stands_beside_the_best_without_one() -> None:
    (row,) = engine.where_it_pays(engine.summarise(runs(), 3, 2)).itertuples()
    assert (row.pipeline, row.pipeline_vs_serial) == (engine.THREADS, 1.6)
    assert (row.other, row.other_vs_serial) == (engine.DDP, pytest.approx(4 / 2.2))
