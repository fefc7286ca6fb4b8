"""``make`` takes torch for CPUs where the user's pip finds it, and only if it can be used."""

import os
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest

from experiments import cpu_torch
from experiments.cpu_torch import found, main

pytestmark = pytest.mark.long

GOOD, BROKEN = "", "raise RuntimeError('operator torchvision::nms does not exist')"


def wheel(folder: Path, name: str, version: str, code: str = GOOD, needs: str = "") -> None:
    """Write a wheel of one empty module."""
    about = f"{name}-{version}.dist-info"
    with ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as file:
        file.writestr(f"{name}.py", code)
        metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        file.writestr(f"{about}/METADATA", metadata + (needs and f"Requires-Dist: {needs}\n"))
        file.writestr(
            f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        names = f"{name}.py", f"{about}/METADATA", f"{about}/WHEEL", f"{about}/RECORD"
        file.writestr(f"{about}/RECORD", "".join(f"{each},,\n" for each in names))


@pytest.fixture
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's own folder of wheels, which has PyPI's newest pair."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    wheel(folder, "torch", "9.2")
    wheel(folder, "torchvision", "9.2", needs="torch==9.2")
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)  # this machine's own settings
    monkeypatch.setattr(cpu_torch, "which", lambda _: None)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


@pytest.fixture
def python(tmp_path: Path) -> str:
    folder = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    return str(folder / "bin/python")


def installed(python: str) -> str:
    code = "from importlib.metadata import distributions as d; print(*sorted(f'{e.name} {e.version}' for e in d()))"
    return subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout


def test_the_newest_pair_for_cpus_is_installed(wheels: Path, python: str) -> None:
    for version in ("9.0", "9.1"):
        wheel(wheels, "torch", f"{version}+cpu")
        wheel(wheels, "torchvision", f"{version}+cpu", needs=f"torch=={version}")
    main(python)
    assert installed(python).split() == ["torch", "9.1+cpu", "torchvision", "9.1+cpu"]


def test_without_a_torchvision_for_cpus_there_is_no_pair(wheels: Path, python: str) -> None:
    wheel(wheels, "torch", "9.1+cpu")
    wheel(wheels, "torchvision", "9.1", needs="torch==9.1")
    wheel(wheels, "torch", "2.0+cpu")  # older than pyproject.toml allows
    wheel(wheels, "torchvision", "2.0+cpu", needs="torch==2.0")
    assert found(python) == []


def test_a_pair_that_does_not_import_is_taken_away(
    wheels: Path, python: str, capsys: pytest.CaptureFixture[str]
) -> None:
    wheel(wheels, "torch", "9.1+cpu")
    wheel(wheels, "torchvision", "9.1+cpu", BROKEN, "torch==9.1")
    main(python)
    assert "found for CPUs" in capsys.readouterr().out
    assert installed(python).split() == []
