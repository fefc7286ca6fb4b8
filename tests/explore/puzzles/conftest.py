"""The page's modules, asked in node."""

import json
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import pipekit.explore.puzzles
from pipekit.explore.puzzles.data import rules

HERE, MODULES = Path(__file__).parent, Path(pipekit.explore.puzzles.__file__).parent
RULES = rules()

Ask = Callable[..., Any]


@pytest.fixture(scope="session")
def ask(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ask]:
    """A function that has ``answer.js`` answer a question about a level."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("node is not installed")
    folder = tmp_path_factory.mktemp("node")
    (folder / "package.json").write_text('{"type": "module"}', encoding="utf-8")
    for module in [*MODULES.glob("*.js"), HERE / "answer.js"]:
        shutil.copy(module, folder)
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([node, "answer.js"], cwd=folder, **pipes) as process:
        assert process.stdin is not None
        assert process.stdout is not None

        def answer(about: str, level: dict[str, Any], **more: Any) -> Any:
            question = {"ask": about, "level": level, "rules": RULES, **more}
            print(json.dumps(question), file=process.stdin, flush=True)
            assert process.stdout is not None
            return json.loads(process.stdout.readline())

        yield answer
        process.stdin.close()
