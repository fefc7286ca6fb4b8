"""Processes as torchrun would start them, which wait for functions to call; every one is ended."""

import os
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from multiprocessing.connection import Connection, Pipe, wait
from tempfile import NamedTemporaryFile
from typing import Any, Self

import cloudpickle
import psutil

from pipekit.engine.transports.processes.forkserver import forkserver, without_main_module
from pipekit.engine.transports.processes.pickling import portable
from pipekit.host.parent import end_with_parent
from pipekit.host.unpickling import loads

READ, SHOWN = 4096, 300  # bytes of what a process has printed last, and characters in messages
LONGEST = 2000  # characters of an error, of which some tell all their tensors
MOST_KEPT = 2**26  # bytes that a process has printed: one that never stops would fill the disk
GRACE_S = 5.0  # for a process to leave by itself

_news: Connection | None = None
"""Of a process that was started here, to the one that started it."""


def tell(place: str) -> None:
    """Tell what this process does next, so that an error can say it."""
    if _news is not None:
        _news.send(("at", place))


class Ranks:
    """Processes that wait for calls; they, and what they have started, end with ``with``."""

    def __init__(self, count: int) -> None:
        environment = _environment(count)
        self._ranks = [_Rank(rank, environment) for rank in range(count)]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for each in self._ranks:
            each.end()

    def call(
        self, function: Callable[..., Any], *arguments: Any, timeout: float = 86_400.0
    ) -> list[Any]:
        """Have each process call ``function(rank, *arguments)``; return what they return.

        A ValueError says which process has failed or left, or where they are when the seconds are
        over, and the last messages.  Its cause is the process's own error.
        """
        job, end = cloudpickle.dumps((function, arguments)), time.monotonic() + timeout
        for each in self._ranks:
            each.result = None
            with suppress(OSError):  # of one that has left, which it is then heard of
                each.news.send_bytes(job)
        while left := [rank for rank in self._ranks if rank.result is None]:
            wait([rank.news for rank in left], min(1.0, max(0.0, end - time.monotonic())))
            for rank in left:
                rank.hear()
            if failed := [rank.failed for rank in left if rank.failed]:
                _, said, error = min(failed, key=lambda each: each[0])  # the others may follow it
                raise ValueError(f"the trainer failed: {said}") from error
            if time.monotonic() > end:
                waiting = "; ".join(rank.where() for rank in left)
                raise ValueError(f"the trainer was ended after {timeout:g} s: {waiting}")
        return [loads(rank.result) for rank in self._ranks]

    def leave(self) -> None:
        for each in self._ranks:
            each.news.close()
            each.process.join(GRACE_S)


class _Rank:
    def __init__(self, rank: int, environment: Mapping[str, str]) -> None:
        self.rank, self._at = rank, "its start"
        self.result: bytes | None = None
        self.failed: tuple[int, str, BaseException | None] | None = None
        self.news, news = Pipe()
        self._printed = NamedTemporaryFile()  # noqa: SIM115  # until the process has ended
        own = {**environment, "RANK": str(rank), "LOCAL_RANK": str(rank)}
        arguments = rank, news, self._printed.name, own
        self.process: Any = forkserver().Process(target=_main, args=arguments)
        with without_main_module():
            self.process.start()
        news.close()

    def hear(self) -> None:
        if os.fstat(self._printed.fileno()).st_size > MOST_KEPT:
            self._printed.truncate(0)  # who appends goes on there
        try:
            while self.news.poll():
                kind, content = self.news.recv()
                if kind == "at":
                    self._at = content
                elif kind == "result":
                    self.result = content
                else:
                    when, said, error = content
                    said = f"rank {self.rank} in {self._at}: {said}"
                    self.failed = when, said, loads(error)
        except (EOFError, OSError):
            self.process.join(GRACE_S)
            left = f"a process left with exit code {self.process.exitcode}, {self.where()}"
            # Before all errors: others follow a process that has left without a word.
            self.failed = 0, left, None

    def where(self) -> str:
        file = self._printed.fileno()
        printed = os.pread(file, READ, max(0, os.fstat(file).st_size - READ))
        words = " ".join(printed.decode(errors="replace").split())[-SHOWN:]
        return f"rank {self.rank} in {self._at}" + (f", its last words: {words}" if words else "")

    def end(self) -> None:
        # All that it has started: some lead a group of their own, some of its group have no parent.
        with suppress(psutil.NoSuchProcess):
            for started in psutil.Process(self.process.pid).children(recursive=True):
                with suppress(psutil.Error):
                    started.kill()
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.kill()
        self.process.join()
        self.news.close()
        self._printed.close()


def _environment(count: int) -> dict[str, str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    torchruns = {"WORLD_SIZE": count, "LOCAL_WORLD_SIZE": count, "MASTER_PORT": port}
    loopback = {"GLOO_SOCKET_IFNAME": "lo"} if sys.platform == "linux" else {}
    own = {name: str(number) for name, number in torchruns.items()}
    return loopback | dict(os.environ) | own | {"MASTER_ADDR": "127.0.0.1"}


def _main(rank: int, news: Connection, printed: str, environment: Mapping[str, str]) -> None:
    global _news
    end_with_parent()
    os.setsid()  # so that all that it starts can be ended with it
    os.environ.update(environment)
    with open(printed, "ab") as file:  # appended, whoever else prints to it
        for stream in (sys.stdout, sys.stderr):
            os.dup2(file.fileno(), stream.fileno())
            stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    _news = news
    with suppress(EOFError, OSError):
        while True:
            news.send(_called(rank, news.recv_bytes()))


def _called(rank: int, job: bytes) -> tuple[str, Any]:
    try:
        function, arguments = cloudpickle.loads(job)
        return "result", cloudpickle.dumps(function(rank, *arguments))
    except BaseException as error:
        traceback.print_exc()
        said = " ".join(f"{type(error).__name__}: {str(error)[:LONGEST]}".split())
        return "error", (time.time_ns(), said, cloudpickle.dumps(portable(error)))
