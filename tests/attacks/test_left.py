"""What a training leaves is seen: each kind of thing is left here on purpose."""

import os
import socket
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest
import torch

from experiments.attacks import left as leaving
from experiments.attacks.left import Snapshot, left
from pipekit.engine.transports.processes.shared_mailbox import SharedBuffer


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


@contextmanager
def open_socket(_: Path) -> Iterator[None]:
    with socket.socket():
        yield


@contextmanager
def shared_memory(_: Path) -> Iterator[None]:
    buffer = SharedBuffer()
    yield
    buffer.close()


@contextmanager
def temporary(folder: Path) -> Iterator[None]:
    with tempfile.NamedTemporaryFile(dir=folder, prefix="pipekit-"):
        yield


@contextmanager
def setting(_: Path) -> Iterator[None]:
    with torch.no_grad():
        yield


@pytest.mark.parametrize(
    ("leave", "says"),
    [
        (thread, "thread pipekit worker 0"),
        (process, "process "),
        (open_socket, "1 open socket"),
        (shared_memory, "memfd:pipekit"),
        (temporary, "temporary pipekit-"),
        (setting, "settings"),
    ],
)
def test_it_is_seen(
    leave: Callable[[Path], AbstractContextManager[None]],
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
