"""Starts a trainer's processes as torchrun would, and ends every one of them."""

import os
import signal
import socket
import sys
import time
import traceback
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from multiprocessing.connection import Connection, Pipe, wait
from threading import Thread
from typing import Any

import cloudpickle
import torch

from pipekit.engine.transports.processes.forkserver import forkserver, without_main_module
from pipekit.host.parent import end_with_parent
from pipekit.parity.adapter import SEED, RankRecord, train

KEPT = 50, 4096  # chunks, and bytes of each, of what a process has printed last
SHOWN = 300  # characters of it
GRACE_S = 5.0  # for all to leave by themselves


def run(
    adapter: Any, model: str, processes: int, timeout: float, seed: int = SEED
) -> list[RankRecord]:
    """Return every rank's record of an adapter, a reference or a class, on a model of the suite.

    Raises:
        ValueError: a process has failed or left, or the time is over; it says which, and its last
            messages.
    """
    environment, ranks = _environment(processes), list[_Rank]()
    job = cloudpickle.dumps((adapter, model, seed))
    try:
        for rank in range(processes):
            ranks.append(_Rank(job, rank, environment))
        records = _records(ranks, timeout)
        for each in ranks:
            each.leave()
        return records
    finally:
        for each in ranks:
            each.end()


class _Rank:
    """One rank: its process, what it has told, and the end of what it has printed."""

    def __init__(self, job: bytes, rank: int, environment: dict[str, str]) -> None:
        self.rank, self._at = rank, "its start"
        self.record: RankRecord | None = None
        self.failed: tuple[int, str] | None = None
        self.news, news = Pipe()
        self._reading, printing = Pipe(duplex=False)
        environment = environment | {"RANK": str(rank), "LOCAL_RANK": str(rank)}
        self._process: Any = forkserver().Process(
            target=_main, args=(job, news, printing, environment)
        )
        with without_main_module():
            self._process.start()
        news.close()
        printing.close()
        self._printed: deque[bytes] = deque(maxlen=KEPT[0])
        self._reader = Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        with suppress(OSError):
            while chunk := os.read(self._reading.fileno(), KEPT[1]):
                self._printed.append(chunk)

    def hear(self) -> None:
        """Take in what the process has told by now, or that it has left; and when it failed."""
        try:
            while self.news.poll():
                kind, content = self.news.recv()
                if kind == "at":
                    self._at = content
                elif kind == "record":
                    self.record = cloudpickle.loads(content)
                else:
                    when, error = content
                    self.failed = when, f"rank {self.rank} in {self._at}: {error}"
        except (EOFError, OSError):
            self._process.join(GRACE_S)
            self._reader.join(GRACE_S)
            left = f"a process left with exit code {self._process.exitcode}, {self.where()}"
            self.failed = 0, left  # before all errors: others follow what has left without a word

    def where(self) -> str:
        """Return what it was doing last, and its last messages."""
        printed = " ".join(b"".join(self._printed).decode(errors="replace").split())
        last = f", its last words: {printed[-SHOWN:]}" if printed else ""
        return f"rank {self.rank} in {self._at}{last}"

    def leave(self) -> None:
        """Let it leave by itself, since all are done."""
        self.news.close()
        self._process.join(GRACE_S)

    def end(self) -> None:
        """End it and what it has started."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.kill()
        self._process.join()
        self._reader.join(1)
        self.news.close()
        self._reading.close()


def _records(ranks: list[_Rank], timeout: float) -> list[RankRecord]:
    end = time.monotonic() + timeout
    while left := [rank for rank in ranks if rank.record is None]:
        wait([rank.news for rank in left], max(0.0, end - time.monotonic()))
        for rank in left:
            rank.hear()
        if failed := [rank.failed for rank in left if rank.failed]:
            raise ValueError(f"the trainer failed: {min(failed)[1]}")  # the others may follow it
        if time.monotonic() > end:
            waiting = "; ".join(rank.where() for rank in left)
            raise ValueError(f"the trainer was ended after {timeout:g} s: {waiting}")
    return [rank.record for rank in ranks if rank.record is not None]


def _environment(processes: int) -> dict[str, str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    loopback = {"GLOO_SOCKET_IFNAME": "lo"} if sys.platform == "linux" else {}
    torchruns = {
        "WORLD_SIZE": str(processes),
        "LOCAL_WORLD_SIZE": str(processes),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }
    return {"OMP_NUM_THREADS": "1"} | loopback | dict(os.environ) | torchruns


def _main(
    job: bytes, news: Connection, printing: Connection, environment: Mapping[str, str]
) -> None:
    """Train, and tell where that is and what came of it: a record, or an error and when."""
    end_with_parent()
    os.setsid()  # so that all that the trainer starts can be ended with it
    os.environ.update(environment)
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    for stream in (sys.stdout, sys.stderr):
        os.dup2(printing.fileno(), stream.fileno())
        stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    printing.close()
    try:
        adapter, model, seed = cloudpickle.loads(job)
        record = train(adapter, model, seed, lambda at: news.send(("at", at)))
        news.send(("record", cloudpickle.dumps(record)))
    except BaseException as error:
        traceback.print_exc()
        said = " ".join(f"{type(error).__name__}: {error}".split())
        news.send(("error", (time.time_ns(), said)))
    with suppress(EOFError, OSError):
        news.recv()  # the others may still need this process
