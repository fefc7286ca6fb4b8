"""The command line as a whole, and ``pipekit cluster``, as a user types them."""

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from pipekit.cli import app
from pipekit.clusters.namespaces import available
from pipekit.schedules.methods.by_name import METHODS
from tests.cli.conftest import Printed

COMMANDS = get_command(app).commands  # type: ignore[attr-defined]


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_examples(command: str, printed: Printed) -> None:
    assert f"pipekit {command}" in printed(f"{command} --help").partition("Example")[2]


@pytest.mark.parametrize("command", ["schedule", "train"])
def test_help_names_every_method(command: str, printed: Printed) -> None:
    text = " ".join(re.sub("[│\n]", " ", printed(f"{command} --help")).split())
    assert [name for name in METHODS if name not in text] == []


def test_help_breaks_its_lines_where_the_terminal_does_and_examples_fit_80_columns() -> None:
    for command in COMMANDS.values():
        prose, _, examples = command.help.partition("\b")
        assert prose.count("\n") == 2 * prose.count("\n\n")
        assert [line for line in examples.splitlines() if len(line) > 78] == []


def test_no_color_is_heeded() -> None:
    said = CliRunner().invoke(app, ["check", "?"], color=True, env={"NO_COLOR": "1"}).output
    assert said.startswith("error: ")


def test_version(printed: Printed) -> None:
    assert re.fullmatch(r"pipekit \d+\.\d+\.\d+\n", printed("--version"))


def test_the_command_line_itself_loads_no_library_that_takes_seconds(repository: Path) -> None:
    code = (
        "import sys, pipekit; before = set(sys.modules); import pipekit.cli; "
        "print({'torch', 'pandas', 'plotly', 'matplotlib', 'papermill'} & sys.modules.keys() - before)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=repository
    )
    assert done.stdout.strip() == "set()"


def test_a_wrong_name_is_refused_before_torch_is_loaded(repository: Path) -> None:
    """Since that takes seconds; counted in imports, not by a clock."""
    lines = [
        *("train --method gpip.csv", "train --model resnet", "train --model missing:make"),
        *("train --mitigation spectrane", "profile vgg17", "schedule gpip"),
    ]
    code = (
        "import sys\nfrom pipekit.cli import app\n"
        f"for line in {lines!r}:\n"
        "  try: app(line.split())\n"
        "  except SystemExit as end: print(end.code, 'torch' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=repository
    )
    assert done.stdout.splitlines() == ["2 False"] * len(lines)
    said = re.findall(
        "must be one of|a file, .* one of the methods|no module is named", done.stderr
    )
    assert len(said) == len(lines)


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
def test_wrong_input_of_a_cluster_gets_one_sentence(
    link: str, says: str, refused: Printed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert says in refused(f"cluster --workers 2 --link {link} -- true")
