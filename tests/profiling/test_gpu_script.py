"""experiments/gpu/profiles.py, as far as a machine without a GPU can try it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from pipekit import Profile


def run(repository: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, str(repository / "experiments" / "gpu" / "profiles.py"), *arguments],
        env=os.environ | {"PYTHONPATH": str(repository), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )


@pytest.mark.slow
def test_a_dry_run_on_the_cpu_writes_a_profile(repository: Path, tmp_path: Path) -> None:
    network = ["--models", "alexnet", "--dtypes", "float32", "--rows", "2"]
    done = run(repository, "--device", "cpu", *network, "--repeats", "1", "--output", str(tmp_path))
    assert done.returncode == 0, done.stderr
    (path,) = tmp_path.iterdir()
    assert path.name == "alexnet-float32-cpu.json"
    made = Profile.load(path)
    assert made.rows == 2
    assert made.provenance["label"] == "measured"
    assert "alexnet" in done.stdout.partition("wrote")[2]


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so(repository: Path) -> None:
    done = run(repository)
    assert done.returncode == 1
    assert done.stderr.startswith("no GPU here")
