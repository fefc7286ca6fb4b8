"""The scripts of experiments/gpu, as far as a machine without a GPU can try them."""

import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import typer
from typer.testing import CliRunner

from pipekit import Profile


@pytest.fixture
def script(repository: Path) -> Callable[..., Any]:
    """Run the script with arguments, in this process, which has torch already."""
    main = runpy.run_path(str(repository / "experiments" / "gpu" / "profiles.py"))["main"]
    app = typer.Typer()
    app.command()(main)
    return lambda *arguments: CliRunner().invoke(app, arguments, catch_exceptions=False)


@pytest.mark.long
def test_a_dry_run_on_the_cpu_writes_a_profile(script: Callable[..., Any], tmp_path: Path) -> None:
    network = ["--models", "alexnet", "--dtypes", "float32", "--rows", "2"]
    done = script("--device", "cpu", *network, "--repeats", "1", "--output", str(tmp_path))
    assert done.exit_code == 0, done.stderr
    (path,) = tmp_path.iterdir()
    assert path.name == "alexnet-float32-cpu.json"
    made = Profile.load(path)
    assert made.rows == 2
    assert made.provenance["label"] == "measured"
    assert "alexnet" in done.stdout.partition("wrote")[2]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so(script: Callable[..., Any]) -> None:
    done = script()
    assert done.exit_code == 1
    assert done.stderr.startswith("no GPU here")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_nothing_is_checked_and_it_says_so(repository: Path) -> None:
    main = runpy.run_path(str(repository / "experiments" / "gpu" / "check.py"))["main"]
    app = typer.Typer()
    app.command()(main)
    done = CliRunner().invoke(app, [], catch_exceptions=False)
    assert done.exit_code == 1
    assert "no GPU here" in done.stderr
    assert "Nothing was checked" in done.stderr
