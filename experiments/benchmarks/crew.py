"""Processes that wait for work, linked by gloo, and kept for a whole benchmark."""

import os
import socket
import tempfile
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch.distributed as dist

from pipekit.engine.transports.processes.forkserver import forkserver
from pipekit.host.operator_threads import share_cores


class Crew:
    """The processes; they end with the ``with`` block.

    Args:
        size: how many.
    """

    def __init__(self, size: int) -> None:
        context = forkserver()
        self._folder = tempfile.TemporaryDirectory(prefix="pipekit-benchmark-")
        store = str(Path(self._folder.name, "store"))
        pipes = [context.Pipe() for _ in range(size)]
        self._pipes = [ours for ours, _ in pipes]
        self._processes = [
            context.Process(target=_main, args=(rank, size, store, theirs), daemon=True)
            for rank, (_, theirs) in enumerate(pipes)
        ]
        for process, (_, theirs) in zip(self._processes, pipes, strict=True):
            process.start()
            theirs.close()  # so that a process that dies is an EOFError here
        for pipe in self._pipes:
            pipe.recv()  # they import and connect before the first contestant runs

    def call(self, function: Callable[..., Any], *arguments: Any) -> list[Any]:
        """Have each process call ``function(rank, *arguments)``; return what they return.

        Raises:
            EOFError: a process died; its traceback is on stderr.
        """
        for pipe in self._pipes:
            pipe.send((function, arguments))
        return [pipe.recv() for pipe in self._pipes]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.join()
        self._folder.cleanup()


def _main(rank: int, size: int, store: str, pipe: Connection) -> None:
    share_cores(size)
    loopback = next(name for _, name in socket.if_nameindex() if name.startswith("lo"))
    os.environ.setdefault("GLOO_SOCKET_IFNAME", loopback)
    file_store = dist.FileStore(store, size)  # type: ignore[attr-defined]
    dist.init_process_group("gloo", store=file_store, rank=rank, world_size=size)
    pipe.send("ready")
    while True:
        function, arguments = pipe.recv()
        pipe.send(function(rank, *arguments))
