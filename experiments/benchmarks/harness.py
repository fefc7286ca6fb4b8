"""The scripts' common parts: where tables go, other commits, and processes that are linked."""

import io
import os
import socket
import subprocess
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pandas as pd
import torch
import torch.distributed as dist

from pipekit.devices import process_group, set_device
from pipekit.engine.transports.processes.forkserver import forkserver
from pipekit.host.operator_threads import share_cores
from pipekit.host.provenance import provenance, write

ROOT = Path(__file__).parents[2]


def measured(seed: int | None = None, **about: Any) -> dict[str, Any]:
    """Return the provenance of a benchmark that starts now."""
    return provenance("measured", seed, load_average_at_start=os.getloadavg()[0], **about)


def show(table: pd.DataFrame, digits: int = 4) -> None:
    print(table.to_string(index=False, float_format=f"%.{digits}g", na_rep=""))


def conclude(name: str, table: pd.DataFrame, record: dict[str, Any], output: Path | None) -> None:
    """Say where the numbers were made; write ``<name>.csv`` and ``<name>.json`` to a folder."""
    print(
        f"{record['cpu']}, {record['cores']} cores, load {record['load_average_at_start']:.1f} at "
        f"the start; Python {record['python']}, torch {record['torch']}, commit {record['commit']}"
    )
    if output is None:
        return
    output.mkdir(parents=True, exist_ok=True)
    table.to_csv(output / f"{name}.csv", index=False, float_format="%.6g")
    write(output / f"{name}.json", record)
    print(f"written: {output / name}.csv and .json")


def check_out(commit: str, folder: Path) -> Path:
    """Unpack a commit of this repository into a folder, and return its path."""
    packed = subprocess.run(
        ["git", "-C", str(ROOT), "archive", commit], check=True, capture_output=True
    ).stdout
    with tarfile.open(fileobj=io.BytesIO(packed)) as files:
        files.extractall(folder, filter="data")
    return folder.resolve()


class Crew:
    """Processes that wait for calls, linked by gloo, or by NCCL between GPUs."""

    def __init__(self, pipes: list[Any]) -> None:
        self._pipes = pipes

    def call(self, function: Callable[..., Any], *arguments: Any) -> list[Any]:
        """Have each process call ``function(rank, *arguments)``; return what they return."""
        for pipe in self._pipes:
            pipe.send((function, arguments))
        return [pipe.recv() for pipe in self._pipes]


@contextmanager
def crew(size: int, kind: str = "cpu") -> Iterator[Crew]:
    """Start so many processes, one a device of a kind; they end with the ``with`` block."""
    context = forkserver()
    with tempfile.TemporaryDirectory(prefix="pipekit-benchmark-") as folder:
        processes, pipes = [], []
        for rank in range(size):
            ours, theirs = context.Pipe()
            arguments = (rank, size, kind, str(Path(folder, "store")), theirs)
            process = context.Process(target=_serve, args=arguments, daemon=True)
            process.start()
            theirs.close()  # so that a process that dies is an EOFError here
            processes.append(process)
            pipes.append(ours)
        try:
            for pipe in pipes:
                pipe.recv()  # they import and connect before the first contestant runs
            yield Crew(pipes)
        finally:
            for process in processes:
                process.kill()
                process.join()


def device_of(rank: int, kind: str) -> torch.device:
    """Return a process's own device."""
    return torch.device(kind) if kind == "cpu" else torch.device(kind, rank)


def _serve(rank: int, size: int, kind: str, store: str, pipe: Connection) -> None:
    share_cores(size)
    loopback = next(name for _, name in socket.if_nameindex() if name.startswith("lo"))
    os.environ.setdefault("GLOO_SOCKET_IFNAME", loopback)
    device = device_of(rank, kind)
    if kind != "cpu":
        set_device(device)
    file_store = dist.FileStore(store, size)  # type: ignore[attr-defined]
    dist.init_process_group(**process_group(device), store=file_store, rank=rank, world_size=size)
    pipe.send("ready")
    while True:
        function, arguments = pipe.recv()
        pipe.send(function(rank, *arguments))
