"""Kernels of notebooks, and the pages of executed ones."""

import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import nbformat
import pytest
from jupyter_client.blocking.client import BlockingKernelClient
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from pipekit.ledger.batches import execution
from pipekit.ledger.batches.execution import ThisInterpreter
from pipekit.ledger.report.page import anchor
from tests.engine.transports.test_loopback import exposed

SVG = "<svg xmlns='http://www.w3.org/2000/svg'/>"
LOADED = re.compile(r'<script[^>]+src="([^"]+)')
HIDDEN = {"tags": ["parameters", "hide-input"], "jupyter": {"source_hidden": True}}


@pytest.fixture(scope="module")
def executed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    drawn = new_output("display_data", {"image/svg+xml": SVG})
    cells = [
        new_markdown_cell("# Speedups"),
        new_code_cell("epochs: int = 3", metadata=HIDDEN),
        new_code_cell("epochs = 9", metadata={"tags": ["injected-parameters"]}),
        new_code_cell("show(bars)", outputs=[drawn], id="cell-bars"),
    ]
    path = tmp_path_factory.mktemp("run") / "speed.ipynb"
    nbformat.write(new_notebook(cells=cells), path)
    return path


@pytest.fixture(scope="module")
def page(executed: Path) -> str:
    return execution.write_page(executed).read_text(encoding="utf-8")


def test_hidden_code_is_folded_and_says_what_it_is(page: str) -> None:
    folds = re.findall(
        r'<details class="folded"><summary>(.+?)</summary>(.+?)</details>', page, re.S
    )
    assert [(name, "9" in code) for name, code in folds] == [
        ("parameters", False),
        ("parameters of this run", True),
    ]
    assert "bars" not in "".join(code for _, code in folds)


def test_cells_are_found_by_their_id_figures_are_there_and_nothing_is_loaded(page: str) -> None:
    assert f'id="{anchor("cell-bars")}"' in page
    assert "data:image/svg+xml;base64," in page
    assert LOADED.findall(page) == []
    assert "mermaid" not in "".join(re.findall(r"<script.*?</script>", page, re.S))


def test_formulas_are_set_by_mathjax(tmp_path: Path) -> None:
    path = tmp_path / "formula.ipynb"
    nbformat.write(new_notebook(cells=[new_markdown_cell("$x^2$")]), path)
    (loaded,) = LOADED.findall(execution.write_page(path).read_text(encoding="utf-8"))
    assert "mathjax" in loaded


def test_both_themes_are_there(page: str) -> None:
    light, dark = re.findall(r"--jp-layout-color0: (.+?);", page)
    assert light != dark
    _, _, styled = page.partition('<style media="(prefers-color-scheme: dark)">')
    assert dark in styled.partition("</style>")[0]


def test_a_kernel_of_this_python_is_spoken_to_through_sockets_of_its_own() -> None:
    manager = ThisInterpreter()
    manager.start_kernel()
    client: BlockingKernelClient = manager.client()
    try:
        client.start_channels()
        client.wait_for_ready(timeout=60)
        asked = {"python": "__import__('sys').executable"}
        answer = client.execute_interactive("", user_expressions=asked)["content"]
        process: Any = manager.provisioner
        assert exposed(process.pid) == 0
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
    said = answer["user_expressions"]["python"]["data"]["text/plain"]
    assert said == repr(sys.executable)
    assert manager.transport == "ipc"
    folder = Path(manager.connection_file).parent
    assert not list(folder.iterdir()), "neither sockets nor the file that names them stay"


def test_where_paths_are_too_long_for_sockets_it_listens_to_this_machine_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (long := tmp_path / ("long" * 25)).mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    manager = ThisInterpreter()
    assert (manager.transport, manager.ip) == ("tcp", "127.0.0.1")


@pytest.mark.skipif(sys.platform != "linux", reason="needs Linux")
def test_memory_is_that_of_all_that_a_process_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(execution, "_LOOK_S", 0.05)
    child = "held = b'x' * 10**8; input()"
    code = f"import subprocess, sys; held = b'x' * 10**8; subprocess.run({[sys.executable, '-c', child]})"
    with (
        subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE) as process,
        execution.taken_memory(lambda: [process.pid]) as seen,
    ):
        while max(seen, default=0) < 2e8:
            time.sleep(0.05)
        process.communicate(b"\n")
    assert 2e8 < max(seen) < 2.5e8
