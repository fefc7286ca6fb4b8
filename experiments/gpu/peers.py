"""A small GPT in four stages; the unsplit model, and ``torch.distributed.pipelining`` of it.

Torch has a process for each device, linked by NCCL (gloo between CPUs). With fewer devices than
stages, each process has several stages: NCCL gives no two processes the same GPU. On one GPU all
stages are one process's, which passes tensors on by reference, and runs one stage at a time.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from pipekit import Schedule, models, schedules, torch_runtime

STAGES, MICROBATCHES, BATCHES = 4, 8, 5
METHODS: dict[str, Schedule] = {
    "GPipe": schedules.gpipe(STAGES, MICROBATCHES),
    "1F1B": schedules.flush(STAGES, MICROBATCHES),
    "PipeDream-2BW": schedules.two_bw(STAGES, MICROBATCHES),
}


def network(width: int) -> nn.Sequential:
    """A GPT of two blocks a stage."""
    torch.manual_seed(0)
    return models.gpt(2 * STAGES, width, max(1, width // 64), vocabulary=512, sequence=64)


def batch(rows: int) -> tuple[Tensor, Tensor]:
    tokens = torch.randint(512, (rows, 64), generator=torch.Generator().manual_seed(1))
    return tokens, tokens


def balance(model: nn.Sequential) -> list[int]:
    """Layers of each stage."""
    middle = len(model) // STAGES
    return [middle] * (STAGES - 1) + [len(model) - middle * (STAGES - 1)]


def sgd(parameters: list[nn.Parameter]) -> torch.optim.SGD:
    return torch.optim.SGD(parameters, lr=0.01, momentum=0.9)


def unsplit(model: nn.Sequential, device: str, rows: int) -> Callable[[], None]:
    """Return a step that trains the unsplit model on a batch, a microbatch after the other."""
    model.to(device)
    optimizer = sgd(list(model.parameters()))
    x, y = (each.to(device) for each in batch(rows * MICROBATCHES))

    def step() -> None:
        optimizer.zero_grad()
        for part, target in zip(x.chunk(MICROBATCHES), y.chunk(MICROBATCHES), strict=True):
            (models.token_loss(model(part), target) / MICROBATCHES).backward()
        optimizer.step()

    return step


def tables(stages: int, microbatches: int, ranks: int) -> dict[str, Schedule]:
    """Return the schedules that torch's runtime has for so many stages on so many ranks."""
    if ranks == stages:
        found = {
            "GPipe": schedules.gpipe(stages, microbatches),
            "1F1B": schedules.flush(stages, microbatches),
        }
    else:
        found = {
            "looped breadth-first": schedules.looped_bfs(stages, microbatches, workers=ranks),
            "interleaved 1F1B": schedules.interleaved(stages, microbatches, workers=ranks),
        }
    return {name: schedule.take(1) for name, schedule in found.items()}


def ranks_on(stages: int, devices: int) -> int:
    """Return the number of processes: one a device, each with equally many stages."""
    return max(n for n in range(1, min(stages, devices) + 1) if stages % n == 0)


def trainer(
    model: nn.Sequential, rows: int, name: str, ranks: int, device: torch.device
) -> Callable[[], None]:
    """Return a step of this rank's stages by one of the :func:`tables`, within a process group."""
    schedule = tables(STAGES, MICROBATCHES, ranks)[name]
    runtime: Any = torch_runtime(schedule, model, balance(model), models.token_loss, device)
    first, last = schedule.stage_workers[0], schedule.stage_workers[-1]
    x, y = (tensor.to(device) for tensor in batch(rows * MICROBATCHES))
    given = (x,) if dist.get_rank() in first else ()
    wanted: dict[str, Any] = {"target": y, "losses": []} if dist.get_rank() in last else {}
    optimizer = sgd(list(model.parameters()))  # of other ranks' stages there are no gradients

    def step() -> None:
        optimizer.zero_grad()
        wanted.get("losses", []).clear()
        runtime.step(*given, **wanted)
        optimizer.step()

    return step
