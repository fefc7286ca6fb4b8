"""A few tries of each kind, as ``make attack`` makes them by the hundred."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pandas as pd
import pytest

from experiments.attacks import interrupts, kills
from pipekit import WorkerDied


@pytest.mark.long
@pytest.mark.parametrize("way", ["processes, saved", "module"])
def test_interrupts(way: str) -> None:
    rows = list(interrupts.interrupt(way, 3, 1))
    assert [row["failure"] for row in rows] == [""] * 3


@pytest.mark.long
def test_kills(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # other tests lay files in theirs
    rows = list(kills.attack(2, 1))
    assert [(row["failure"], row["equal"]) for row in rows] == [("", True)] * 2
    assert {"trial", "method", "killed"} <= rows[0].keys(), "README counts them"


@pytest.mark.long
def test_the_outcomes_are_counted_and_kept(repository: Path, tmp_path: Path) -> None:
    line = [
        sys.executable,
        "-m",
        "experiments.attacks",
        "interrupts",
        "--tries",
        "2",
        "--seed",
        "7",
    ]
    done = subprocess.run(
        [*line, "--output", str(tmp_path)],
        cwd=repository,
        env=os.environ | {"PYTHONPATH": str(repository)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "2 interrupts (measured); 0 faults" in done.stdout
    counts = pd.read_csv(tmp_path / "interrupts.csv")
    assert list(counts.columns) == ["way", "moment", "outcome", "failure"]
    assert len(counts) == 2
    record = json.loads((tmp_path / "interrupts.json").read_text(encoding="utf-8"))
    assert record["parameters"] == {"seeds": [7]}
    assert record["label"] == "measured"


def test_a_training_with_a_hole_in_it_is_a_fault() -> None:
    """An error without its word, or without the remedy, is one."""
    assert "no word of how to resume" in kills.wrong("SIGKILL", WorkerDied("(SIGKILL, killed"))
    assert kills.wrong("SIGKILL", BrokenPipeError(32, "Broken pipe")).startswith("BrokenPipeError")
    told = WorkerDied("(SIGTERM)")
    told.add_note("call resume('x')")
    assert kills.wrong("SIGTERM", told) == ""
