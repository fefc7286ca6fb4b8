"""The command line, as a user types it."""

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click import unstyle
from typer.testing import CliRunner

from pipekit.cli import app

Printed = Callable[[str], str]
"""Runs what stands after ``pipekit``, and returns what is said."""


@pytest.fixture
def pipekit() -> Callable[[str], Any]:
    """Run what stands after ``pipekit``, as on a wide terminal: rich then breaks no line."""

    def run(line: str) -> Any:
        return CliRunner().invoke(
            app,
            shlex.split(line),
            catch_exceptions=False,
            env={"COLUMNS": "250", "TERMINAL_WIDTH": "250"},
        )

    return run


@pytest.fixture
def printed(pipekit: Callable[[str], Any]) -> Printed:
    """Run a command that must succeed, and return what it prints."""

    def run(line: str) -> str:
        result = pipekit(line)
        assert result.exit_code == 0, result.output
        return str(unstyle(result.stdout))

    return run


@pytest.fixture
def refused(pipekit: Callable[[str], Any]) -> Printed:
    """Run a command with wrong input, and return the one line said about it."""

    def run(line: str) -> str:
        result = pipekit(line)
        assert result.exit_code == 2
        assert result.stdout == ""
        (sentence,) = result.stderr.splitlines()
        return str(sentence)

    return run


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path
