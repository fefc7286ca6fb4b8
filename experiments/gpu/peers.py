"""What trains the same network on the same devices by ``torch.distributed.pipelining``.

A process for each device, linked by NCCL (gloo between CPUs).  With fewer devices than stages, each
process has several stages: NCCL gives no two processes the same GPU.  On one GPU all stages are one
process's, which passes tensors on by reference, and runs one stage at a time.
"""

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.multiprocessing.spawn import spawn

from experiments.gpu.network import sgd
from pipekit import Schedule, schedules, torch_runtime
from pipekit.devices import process_group, set_device

Step = Callable[[], object]


def tables(stages: int, microbatches: int, ranks: int) -> dict[str, Schedule]:
    """Return the schedules that torch's runtime has for so many stages on so many ranks."""
    if ranks == stages:
        return {
            "GPipe": schedules.gpipe(stages, microbatches).take(1),
            "1F1B": schedules.flush(stages, microbatches).take(1),
        }
    return {
        "looped breadth-first": schedules.looped_bfs(stages, microbatches, workers=ranks).take(1),
        "interleaved 1F1B": schedules.interleaved(stages, microbatches, workers=ranks).take(1),
    }


def ranks_on(stages: int, devices: int) -> int:
    """Return how many processes there are: one a device, each with equally many stages."""
    return max(n for n in range(1, min(stages, devices) + 1) if stages % n == 0)


def trainer(
    schedule: Schedule,
    model: nn.Sequential,
    balance: list[int],
    loss: Callable[[Tensor, Tensor], Tensor],
    batch: tuple[Tensor, Tensor],
    device: torch.device,
) -> Step:
    """Return what trains this rank's stages on a batch; the process group is there.

    Args:
        schedule: of one batch.
        model: the whole one; its layers are moved to the device.
        balance: layers of each stage.
        loss: of a microbatch.
        batch: input and target, [rows, ...] each.
        device: of this rank.
    """
    runtime: Any = torch_runtime(schedule, model, balance, loss, device)
    first, last = schedule.stage_workers[0], schedule.stage_workers[-1]
    x, y = (tensor.to(device) for tensor in batch)
    given = (x,) if dist.get_rank() in first else ()
    wanted: dict[str, Any] = {"target": y, "losses": []} if dist.get_rank() in last else {}
    optimizer = sgd(list(model.parameters()))  # of other ranks' stages there are no gradients

    def step() -> None:
        optimizer.zero_grad()
        wanted.get("losses", []).clear()
        runtime.step(*given, **wanted)
        optimizer.step()

    return step


def on_all(ranks: int, kind: str, function: Callable[..., Any], *given: Any) -> list[Any]:
    """Return what ``function(device, *given)`` returns in each of so many processes, one a device.

    Args:
        ranks: how many.
        kind: of the devices: "cuda", say, or "cpu".
        function: defined in a module.
        given: its other arguments, which can be pickled.
    """
    with tempfile.TemporaryDirectory() as folder:
        spawn(_rank, (ranks, kind, folder, function, given), nprocs=ranks)
        return [torch.load(Path(folder, f"result{rank}")) for rank in range(ranks)]


def _rank(
    rank: int,
    ranks: int,
    kind: str,
    folder: str,
    function: Callable[..., Any],
    given: tuple[Any, ...],
) -> None:
    device = torch.device(kind) if kind == "cpu" else torch.device(kind, rank)
    if kind == "cpu":
        torch.set_num_threads(1)
    else:
        set_device(device)
    store = dist.FileStore(str(Path(folder, "store")), ranks)  # type: ignore[attr-defined]
    dist.init_process_group(**process_group(device), store=store, rank=rank, world_size=ranks)
    try:
        torch.save(function(device, *given), Path(folder, f"result{rank}"))
    finally:
        dist.destroy_process_group()
