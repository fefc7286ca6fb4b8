"""Trainings killed and interrupted at random, a few here and many by ``make attack``."""

import ast
import os
import socket
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch

from pipekit import WorkerDied
from pipekit.engine.transports.processes.shared_mailbox import SharedBuffer
from pipekit.ledger.batches.execution import ThisInterpreter
from tests.attacks import interrupts, kills
from tests.attacks import left as leaving
from tests.attacks.left import Snapshot, left


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "number" in metafunc.fixturenames:
        tries, _ = options(metafunc.config)
        metafunc.parametrize("number", range(tries))


def options(config: pytest.Config) -> tuple[int, int]:
    """Return how many tries, and the seed; pytest knows them if it is given this folder."""
    return config.getoption("tries", 2), config.getoption("seed", 0)


@pytest.mark.scripts
def test_a_killed_training_is_resumed(
    number: int,
    pytestconfig: pytest.Config,
    record_property: Callable[[str, object], None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # other tests lay files in theirs
    _, seed = options(pytestconfig)
    rows = list(kills.trial(seed + number))
    for row in rows:
        record_property("kills", row)
    assert [row["failure"] for row in rows] == [""] * len(rows)
    assert all({"trial", "method", "killed", "equal"} <= row.keys() for row in rows), "docs count"


@pytest.fixture(scope="module")
def interrupted(request: pytest.FixtureRequest) -> Iterator[Iterator[dict[str, Any]]]:
    """Interrupts in a way, all of one process if none shows a fault."""
    with closing(interrupts.interrupt(request.param, *options(request.config))) as rows:
        yield rows


@pytest.mark.scripts
@pytest.mark.parametrize("interrupted", interrupts.WAYS, indirect=True)
def test_an_interrupted_training_leaves_nothing(
    interrupted: Iterator[dict[str, Any]],
    number: int,
    record_property: Callable[[str, object], None],
) -> None:
    row = next(interrupted)
    record_property("interrupts", row)
    assert row["failure"] == ""


@pytest.mark.scripts
def test_an_interrupted_cell_leaves_nothing_in_its_kernel(tmp_path: Path) -> None:
    """The kernel's last traceback still holds the whole training."""
    manager: Any = ThisInterpreter(connection_file=str(tmp_path / "kernel.json"))
    (temporary := tmp_path / "t").mkdir()  # short: a socket's path has 107 characters at most
    manager.start_kernel(env={**os.environ, "TMPDIR": str(temporary)}, cwd=os.getcwd())
    client = manager.client()
    client.start_channels()
    try:
        client.wait_for_ready(timeout=300)
        make = "from tests.attacks.interrupts import Trainings; t = Trainings('processes')"
        for code in (make, "row = t.interrupted(0.5, again=True)"):
            assert client.execute_interactive(code, timeout=300)["content"]["status"] == "ok"
        answer = client.execute_interactive("", user_expressions={"row": "row"}, timeout=300)
        row = ast.literal_eval(answer["content"]["user_expressions"]["row"]["data"]["text/plain"])
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
    assert row["failure"] == ""
    assert row["outcome"] in ("interrupted", "ended")


def test_a_training_with_a_hole_in_it_is_a_fault() -> None:
    """An error without its word, or without the remedy, is one."""
    assert "no word of how to resume" in kills.wrong("SIGKILL", WorkerDied("(SIGKILL, killed"))
    assert kills.wrong("SIGKILL", BrokenPipeError(32, "Broken pipe")).startswith("BrokenPipeError")
    told = WorkerDied("(SIGTERM)")
    told.add_note("call resume('x')")
    assert kills.wrong("SIGTERM", told) == ""


@contextmanager
def thread(_: Path) -> Iterator[None]:
    over = threading.Event()
    started = threading.Thread(target=over.wait, name="pipekit worker 0")
    started.start()
    yield
    over.set()
    started.join()


@contextmanager
def process(_: Path) -> Iterator[None]:
    with subprocess.Popen(["sleep", "100"]) as child:
        yield
        child.kill()


@pytest.mark.parametrize(
    ("leave", "says"),
    [
        (thread, "thread pipekit worker 0"),
        (process, "process "),
        (lambda _: socket.socket(), "1 open socket"),
        (lambda _: closing(SharedBuffer()), "memfd:pipekit"),
        (lambda folder: TemporaryDirectory(dir=folder, prefix="pipekit-"), "temporary pipekit-"),
        (lambda _: torch.no_grad(), "settings"),
    ],
)
def test_it_is_seen(
    leave: Callable[[Path], AbstractContextManager[object]],
    says: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = Snapshot.now(tmp_path)
    with leave(tmp_path), monkeypatch.context() as impatient:
        impatient.setattr(leaving, "PATIENCE_S", 0.05)
        assert any(says in thing for thing in left(before, tmp_path))
    assert left(before, tmp_path) == []


def test_a_process_that_was_to_end_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leaving, "PATIENCE_S", 0.05)
    before = Snapshot.now(tmp_path)
    assert left(before, tmp_path, [os.getpid()]) == [f"process {os.getpid()}"]
    assert not leaving.is_alive(2**22 + 1)
