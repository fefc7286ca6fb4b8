"""``pipekit cluster``, as a user types it."""

import os
import sys
from collections.abc import Callable
from typing import Any

import pytest

from pipekit.clusters.namespaces import available
from tests.cli.conftest import Printed

REASON = available()
needs_namespaces = pytest.mark.skipif(REASON is not None, reason=str(REASON))


@needs_namespaces
def test_a_commands_own_options_are_its_own(pipekit: Callable[[str], Any]) -> None:
    result = pipekit("cluster --workers 2 --link 1gbit -- echo --workers '$RANK'")
    assert result.exit_code == 0, result.output
    assert sorted(result.stdout.splitlines()) == ["[0] --workers $RANK", "[1] --workers $RANK"]


@needs_namespaces
def test_the_exit_code_is_the_failed_workers(pipekit: Callable[[str], Any]) -> None:
    result = pipekit("cluster --workers 2 -- sh -c 'echo out; echo err >&2; exit $((RANK * 7))'")
    assert result.exit_code == 7
    assert "[1] out" in result.stdout
    assert "[1] err" in result.stderr


@pytest.mark.parametrize(
    ("link", "says"), [("1gbps", "written as tc writes them"), ("1gbit", "need root")]
)
def test_wrong_input_gets_one_sentence(
    link: str, says: str, refused: Printed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert says in refused(f"cluster --workers 2 --link {link} -- true")
