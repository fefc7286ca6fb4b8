"""Communication stalls of real data-parallel training over slow links (PipeDream, section 2.1).

Two workers, each in a network namespace, train one model: with PyTorch's DistributedDataParallel
(DDP), which sends a bucket of gradients as soon as the backward has computed it (wait-free
backpropagation), and with pipekit's engine, as a single stage on two workers (section 4).
"""

import time
from collections.abc import Callable, Iterable
from functools import partial

import numpy as np
import pandas as pd
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

from pipekit.clusters import namespaces
from pipekit.engine import Pipeline
from pipekit.host.operator_threads import share_cores
from pipekit.schedules import pipedream

WORKERS = 2
LR = 0.01
TRANSFERRED_BYTES, TRANSFERS = 25_690_112, 5  # what pool3 of VGG16 puts out, for 32 images

COMPUTE = "compute alone"
WAIT_FREE = "DDP, wait-free"
ENGINE = "pipekit, one stage on 2 workers"
TRANSFER = "a transfer"

Step = Callable[[Tensor, Tensor], None]


def measure(link: str | None, rows: int, steps: int, repeats: int) -> pd.DataFrame:
    """Train on two workers behind links of a rate, "300mbit" as ``tc`` writes it, or None.

    Returns the seconds from one update to the next, by ``way`` and ``turn``, and those of each
    transfer of ``TRANSFERRED_BYTES``. Without network namespaces it is an OSError.
    """
    taken = namespaces.call(train, WORKERS, link, rows, steps, repeats)
    frame = pd.DataFrame(taken, columns=["way", "turn", "seconds"])
    return frame.explode("seconds", ignore_index=True).astype({"seconds": float})


def network() -> nn.Sequential:
    """Return a small AlexNet for images [B, 1, 28, 28]: 26 MB of weights, 99 % in linear layers."""
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
    updates = []
    for inputs, targets in batches:
        step(inputs, targets)
        updates.append(time.perf_counter())
    return [float(seconds) for seconds in np.diff(updates)]


def step_of(model: nn.Module) -> Step:
    """Return a step of the ordinary loop."""
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)

    def step(inputs: Tensor, targets: Tensor) -> None:
        optimizer.zero_grad()
        F.cross_entropy(model(inputs), targets).backward()
        optimizer.step()

    return step


def transfer_seconds() -> float:
    """Return the seconds that a tensor takes from worker 0 to worker 1, there to the last byte."""
    other = 1 - dist.get_rank()
    there, back = (dist.send, dist.recv) if other else (dist.recv, dist.send)
    tensor, answer = torch.zeros(TRANSFERRED_BYTES // 4), torch.zeros(1)
    dist.barrier()
    start = time.perf_counter()
    there(tensor, other)
    back(answer, other)
    return time.perf_counter() - start


def train(rows: int, steps: int, repeats: int) -> list[tuple[str, int, list[float]]]:
    """Train as one of the workers; return each way's seconds, by turn."""
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
    ways = {COMPUTE: step_of(network()), WAIT_FREE: step_of(DistributedDataParallel(network()))}
    for step in ways.values():
        timed(step, own[:2])  # DDP arranges its buckets after its first step
    taken = []
    for turn in range(repeats):
        for way, step in ways.items():
            dist.barrier()
            taken.append((way, turn, timed(step, own)))
        updates = pipeline.train(own * WORKERS).trace.ends("UPDATE", worker=0)
        taken.append((ENGINE, turn, np.diff(updates).tolist()))
    return [*taken, (TRANSFER, 0, [transfer_seconds() for _ in range(TRANSFERS)])]
