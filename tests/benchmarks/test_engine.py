"""The benchmark runs, and says whether weights are equal; its times decide nothing."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest


@pytest.mark.long
def test_the_benchmark_compares_every_contestants_weights_with_serial_training(
    repository: Path, tmp_path: Path
) -> None:
    case = ["--width", "16", "--stages", "2", "--microbatches", "4", "--repeats", "1"]
    case += ["--schedule", "1F1B", "--output", str(tmp_path)]
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
    table = pd.read_csv(tmp_path / "engine.csv", keep_default_na=False)
    assert len(table) == 7
    assert (table["us"] > 0).all()
    assert table.set_index("engine").loc[["threads", "distributed"], "bit_equal"].all()
    record = json.loads((tmp_path / "engine.json").read_text(encoding="utf-8"))
    assert record["label"] == "measured"
