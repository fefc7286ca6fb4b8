"""The scripts' common parts: where tables go, other commits, plain loops, and linked processes."""

import io
import os
import subprocess
import tarfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pandas as pd
import torch
import torch.distributed as dist
from torch import Tensor, nn

from pipekit.devices import process_group, set_device
from pipekit.engine import OptimizerFactory
from pipekit.host.operator_threads import share_cores
from pipekit.host.provenance import provenance, write
from pipekit.parity.launch import Ranks

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
    packed = subprocess.run(["git", "-C", str(ROOT), "archive", commit], stdout=subprocess.PIPE)
    if packed.returncode:
        raise SystemExit(f"name a commit that git can unpack, not {commit!r}")  # git has said why
    with tarfile.open(fileobj=io.BytesIO(packed.stdout)) as files:
        files.extractall(folder, filter="data")
    return folder.resolve()


def plain_step(
    model: nn.Module,
    batch: Sequence[Tensor],
    loss: Callable[[Any, Any], Tensor],
    parts: int,
    optimizer: OptimizerFactory,
) -> Callable[[], None]:
    """Return a step of the ordinary loop, on a batch in so many equal parts."""
    updates = optimizer(list(model.parameters()))
    pieces = [tensor.tensor_split(parts) for tensor in batch]

    def step() -> None:
        for x, y in zip(*pieces, strict=True):
            (loss(model(x), y) / parts).backward()
        updates.step()
        updates.zero_grad()

    return step


def transfer_seconds(size: int) -> float:
    """Return the seconds that so many bytes take from process 0 to 1, to the last one."""
    tensor, answer, rank = torch.zeros(size // 4), torch.zeros(1), dist.get_rank()
    dist.barrier()
    start = time.perf_counter()
    if rank == 0:
        dist.send(tensor, 1)
        dist.recv(answer, 1)
    elif rank == 1:
        dist.recv(tensor, 0)
        dist.send(answer, 0)
    return time.perf_counter() - start


@contextmanager
def crew(size: int, kind: str = "cpu") -> Iterator[Ranks]:
    """Start so many processes, one a device of a kind, linked by gloo, or by NCCL between GPUs."""
    with Ranks(size) as processes:
        processes.call(_join, size, kind)
        yield processes


def device_of(rank: int, kind: str) -> torch.device:
    """Return a process's own device."""
    return torch.device(kind) if kind == "cpu" else torch.device(kind, rank)


def _join(rank: int, size: int, kind: str) -> None:
    share_cores(size)
    device = device_of(rank, kind)
    if kind != "cpu":
        set_device(device)
    dist.init_process_group(**process_group(device))
