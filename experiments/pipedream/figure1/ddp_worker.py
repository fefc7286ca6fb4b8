"""One worker of real data-parallel training, by each of several ways (PipeDream, section 2.1).

:mod:`experiments.pipedream.figure1.ddp_stall` starts this module as a program, twice.
"""

import json
import sys
import time
from collections.abc import Callable, Iterable
from functools import partial
from itertools import pairwise
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

from pipekit.engine import Pipeline
from pipekit.host.operator_threads import share_cores
from pipekit.schedules import pipedream

WORKERS = 2
LR = 0.01
TRANSFERRED_BYTES, TRANSFERS = 25_690_112, 5  # what pool3 of VGG16 puts out, for 32 images

COMPUTE = "compute alone"
WAIT_FREE = "DDP, wait-free"
AFTER = "sums after the backward"
ENGINE = "pipekit, one stage on 2 workers"

Step = Callable[[Tensor, Tensor], None]


def network() -> nn.Sequential:
    """Return a small AlexNet for images [B, 1, 28, 28]: 26 MB of weights, 99 % in linear layers.

    As in AlexNet and VGG16, the backward comes to the many weights first and then computes longest.
    """
    return nn.Sequential(
        nn.Conv2d(1, 32, 5, padding=2),  # [B, 32, 28, 28]
        nn.ReLU(),
        nn.MaxPool2d(2),  # [B, 32, 14, 14]
        nn.Conv2d(32, 64, 5, padding=2),  # [B, 64, 14, 14]
        nn.ReLU(),
        nn.MaxPool2d(2),  # [B, 64, 7, 7]
        nn.Flatten(),  # [B, 3136]
        nn.Linear(3136, 2048),
        nn.ReLU(),
        nn.Linear(2048, 10),
    )


def timed(step: Step, batches: Iterable[tuple[Tensor, Tensor]]) -> list[float]:
    """Return the seconds from the end of each step to the end of the next."""
    ends = []
    for inputs, targets in batches:
        step(inputs, targets)
        ends.append(time.perf_counter())
    return [after - before for before, after in pairwise(ends)]


def alone(model: nn.Module, between: Callable[[], None] = lambda: None) -> Step:
    """Return a step that computes and updates, and does something between the two."""
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)

    def step(inputs: Tensor, targets: Tensor) -> None:
        optimizer.zero_grad()
        F.cross_entropy(model(inputs), targets).backward()
        between()
        optimizer.step()

    return step


def summed_after(model: nn.Module) -> Step:
    """Return a step that sums the gradients once the backward is done."""

    def average() -> None:
        for parameter in model.parameters():
            assert parameter.grad is not None
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()

    return alone(model, average)


def of_engine(pipeline: Pipeline, batches: list[tuple[Tensor, Tensor]]) -> list[float]:
    """Return the seconds from update to update of pipekit's engine."""
    ends = pipeline.train(batches).trace.ends("UPDATE", worker=0)
    return [after - before for before, after in pairwise(ends)]


def transfer_seconds() -> float:
    """Return the seconds that a tensor takes from worker 0 to worker 1, there to the last byte."""
    tensor, answer = torch.zeros(TRANSFERRED_BYTES // 4), torch.zeros(1)
    dist.barrier()
    start = time.perf_counter()
    if dist.get_rank() == 0:
        dist.send(tensor, 1)
        dist.recv(answer, 1)
    else:
        dist.recv(tensor, 0)
        dist.send(answer, 0)
    return time.perf_counter() - start


def work(path: Path, rows: int, steps: int, repeats: int) -> None:
    """Be one of the workers; the first writes what it measured to ``path``."""
    dist.init_process_group("gloo")
    share_cores(WORKERS)
    torch.manual_seed(0)
    own = [(torch.rand(rows, 1, 28, 28), torch.randint(10, (rows,)))] * (steps + 1)
    pipeline = Pipeline(
        network(),
        pipedream([WORKERS]),
        optimizer=partial(torch.optim.SGD, lr=LR),
        loss=nn.CrossEntropyLoss(),
        transport="distributed",
    )
    ways = {
        COMPUTE: alone(network()),
        WAIT_FREE: alone(DistributedDataParallel(network())),
        AFTER: summed_after(network()),
    }
    for step in ways.values():
        timed(step, own[:2])  # DDP arranges its buckets after its first step
    taken: dict[str, list[float]] = {way: [] for way in (*ways, ENGINE)}
    for _ in range(repeats):
        for way, step in ways.items():
            dist.barrier()
            taken[way] += timed(step, own)
        taken[ENGINE] += of_engine(pipeline, own * WORKERS)
    transfers = [transfer_seconds() for _ in range(TRANSFERS)]
    if dist.get_rank() == 0:
        path.write_text(json.dumps({"steps": taken, "transfers": transfers}), encoding="utf-8")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    work(Path(sys.argv[1]), *map(int, sys.argv[2:]))
