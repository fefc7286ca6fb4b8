"""``pipekit cluster``, as a user types it."""

import os
import sys
from typing import Any

import pytest
from click import unstyle
from typer.testing import CliRunner

from pipekit.cli import app
from pipekit.clusters.namespaces import available

REASON = available()
needs_namespaces = pytest.mark.skipif(REASON is not None, reason=str(REASON))


def typed(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["cluster", *arguments], env={"COLUMNS": "250"})


def test_help_has_examples() -> None:
    text = str(unstyle(typed("--help").stdout))
    assert "pipekit cluster --workers 2 --link 1gbit --" in text.partition("Examples")[2]


@needs_namespaces
def test_a_commands_own_options_are_its_own() -> None:
    result = typed("--workers", "2", "--link", "1gbit", "--", "echo", "--workers", "$RANK")
    assert result.exit_code == 0, result.output
    assert sorted(result.stdout.splitlines()) == ["[0] --workers $RANK", "[1] --workers $RANK"]


@needs_namespaces
def test_the_exit_code_is_the_failed_workers() -> None:
    result = typed("--workers", "2", "--", "sh", "-c", "echo out; echo err >&2; exit $((RANK * 7))")
    assert result.exit_code == 7
    assert "[1] out" in result.stdout
    assert "[1] err" in result.stderr


def test_wrong_input_gets_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    for link, says in (("1gbps", "written as tc writes them"), ("1gbit", "need root")):
        result = typed("--workers", "2", "--link", link, "--", "true")
        assert result.exit_code == 2
        (sentence,) = result.stderr.splitlines()
        assert says in sentence
