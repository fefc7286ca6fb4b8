"""A few tries of each kind, as ``make attack`` makes them by the hundred, and what they leave."""

import ast
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pandas as pd
import pytest
import torch

from experiments.attacks import interrupts, kills
from experiments.attacks import left as leaving
from experiments.attacks.left import Snapshot, left
from pipekit import WorkerDied
from pipekit.engine.transports.processes.shared_mailbox import SharedBuffer
from pipekit.ledger.batches.execution import ThisInterpreter


@pytest.mark.scripts
@pytest.mark.parametrize("way", ["processes, saved", "module"])
def test_interrupts(way: str) -> None:
    rows = list(interrupts.interrupt(way, 3, 1))
    assert [row["failure"] for row in rows] == [""] * 3


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
        make = "from experiments.attacks.interrupts import Trainings; t = Trainings('processes')"
        for code in (make, "row = t.interrupted(0.5, again=True)"):
            assert client.execute_interactive(code, timeout=300)["content"]["status"] == "ok"
        answer = client.execute_interactive("", user_expressions={"row": "row"}, timeout=300)
        row = ast.literal_eval(answer["content"]["user_expressions"]["row"]["data"]["text/plain"])
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
    assert row["failure"] == ""
    assert row["outcome"] in ("interrupted", "ended")


@pytest.mark.scripts
def test_kills(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # other tests lay files in theirs
    rows = list(kills.attack(2, 1))
    assert [(row["failure"], row["equal"]) for row in rows] == [("", True)] * 2
    assert {"trial", "method", "killed"} <= rows[0].keys(), "README counts them"


@pytest.mark.scripts
def test_the_outcomes_are_counted_and_kept(repository: Path, tmp_path: Path) -> None:
    line = f"{sys.executable} -m experiments.attacks interrupts --tries 2 --seed 7".split()
    done = subprocess.run(
        [*line, "--output", str(tmp_path)],
        cwd=repository,
        env=os.environ | {"PYTHONPATH": str(repository)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "2 interrupts (measured); 0 faults" in done.stdout
    counts = pd.read_csv(tmp_path / "interrupts.csv")
    assert list(counts.columns) == ["way", "moment", "outcome", "failure"]
    assert len(counts) == 2
    record = json.loads((tmp_path / "interrupts.json").read_text(encoding="utf-8"))
    assert record["parameters"] == {"seeds": [7]}
    assert record["label"] == "measured"


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
