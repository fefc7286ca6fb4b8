"""Starts a trainer's processes as torchrun would, and ends every one of them."""

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import deque
from contextlib import suppress
from pathlib import Path
from threading import Thread
from typing import IO

import cloudpickle
import torch

from pipekit.parity.worker import Job, Record

KEPT = 50, 4096  # chunks, and bytes of each, of what a process has printed last
SHOWN = 300  # characters of it
GRACE_S = 5.0  # for all to leave by themselves


class _Process:
    """One rank: its process group, and the end of what it has printed."""

    def __init__(self, folder: Path, rank: int, environment: dict[str, str]) -> None:
        self._folder, self.rank = folder, rank
        self._started = subprocess.Popen(
            [sys.executable, "-m", "pipekit.parity.worker", str(folder)],
            env=environment | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self._printed: deque[bytes] = deque(maxlen=KEPT[0])
        self._reader = Thread(target=self._read, args=(self._started.stdout,), daemon=True)
        self._reader.start()

    def _read(self, pipe: IO[bytes]) -> None:
        with suppress(OSError, ValueError):
            while chunk := os.read(pipe.fileno(), KEPT[1]):
                self._printed.append(chunk)

    def file(self, kind: str) -> Path:
        """Return where the process leaves its "record", its "error", and where it is "at"."""
        return self._folder / f"{self.rank}.{kind}"

    def is_done(self) -> bool:
        return self.file("record").exists()

    def has_left(self) -> bool:
        return self._started.poll() is not None and not self.is_done()

    def where(self) -> str:
        """Return what it was doing last, and its last messages."""
        printed = " ".join(b"".join(self._printed).decode(errors="replace").split())
        last = f", its last words: {printed[-SHOWN:]}" if printed else ""
        return f"rank {self.rank} in {self._at()}{last}"

    def _at(self) -> str:
        at = self.file("at")
        return (at.read_text(encoding="utf-8") if at.exists() else "") or "its start"

    def failure(self) -> str:
        """Return why it has left, in a sentence."""
        self._reader.join(1)
        if self.file("error").exists():
            error = " ".join(self.file("error").read_text(encoding="utf-8").split())
            return f"rank {self.rank} in {self._at()}: {error}"
        return f"a process left with exit code {self._started.returncode}, {self.where()}"

    def leave(self) -> None:
        """Let it leave by itself, since all are done."""
        assert self._started.stdin is not None
        with suppress(OSError):
            self._started.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            self._started.wait(GRACE_S)

    def end(self) -> None:
        """End it and what it has started."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._started.pid, signal.SIGKILL)
        self._started.wait()
        self._reader.join(1)
        for pipe in (self._started.stdin, self._started.stdout):
            assert pipe is not None
            with suppress(OSError):
                pipe.close()


def run(job: Job, processes: int, timeout: float) -> list[Record]:
    """Return every rank's record.

    Raises:
        ValueError: a process has failed or left, or the time is over; it says which, and its last
            messages.
    """
    with tempfile.TemporaryDirectory() as name:
        folder, environment = Path(name), _environment(processes)
        (folder / "job").write_bytes(cloudpickle.dumps(job))
        ranks: list[_Process] = []
        try:
            ranks += [_Process(folder, rank, environment) for rank in range(processes)]
            _wait(ranks, timeout)
            for rank in ranks:
                rank.leave()
        finally:
            for rank in ranks:
                rank.end()
        return [torch.load(rank.file("record"), weights_only=False) for rank in ranks]


def _wait(ranks: list[_Process], timeout: float) -> None:
    end = time.monotonic() + timeout
    while not all(rank.is_done() for rank in ranks):
        if any(rank.has_left() for rank in ranks):
            raise ValueError(f"the trainer failed: {_first(ranks).failure()}")
        if time.monotonic() > end:
            waiting = "; ".join(rank.where() for rank in ranks if not rank.is_done())
            raise ValueError(f"the trainer was ended after {timeout:g} s: {waiting}")
        time.sleep(0.02)


def _first(ranks: list[_Process]) -> _Process:
    """Return the rank that failed first; the others may have failed since it was gone."""
    errors = [rank for rank in ranks if rank.file("error").exists()]
    if errors:
        return min(errors, key=lambda rank: rank.file("error").stat().st_mtime_ns)
    return next(rank for rank in ranks if rank.has_left())


def _environment(processes: int) -> dict[str, str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    found = os.environ | {
        "WORLD_SIZE": str(processes),
        "LOCAL_WORLD_SIZE": str(processes),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        "PYTHONUNBUFFERED": "1",
    }
    loopback = {"GLOO_SOCKET_IFNAME": "lo"} if sys.platform == "linux" else {}
    return {"OMP_NUM_THREADS": "1"} | loopback | found
