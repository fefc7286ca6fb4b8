"""Communication stalls of real data-parallel training over slow links (PipeDream, section 2.1).

Two workers, each in a network namespace, train one model: with PyTorch's DistributedDataParallel
(DDP), which sends a bucket of gradients as soon as the backward has computed it (wait-free
backpropagation), and with pipekit's engine, as a single stage on two workers (section 4).
"""

import time
from collections.abc import Callable
from functools import partial

import numpy as np
import pandas as pd
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from experiments.benchmarks.harness import plain_step, transfer_seconds
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


def timed(step: Callable[[], None], steps: int) -> list[float]:
    """Return the seconds from one update to the next."""
    updates = []
    for _ in range(1 + steps):
        step()
        updates.append(time.perf_counter())
    return [float(seconds) for seconds in np.diff(updates)]


def train(rows: int, steps: int, repeats: int) -> list[tuple[str, int, list[float]]]:
    """Train as one of the workers; return each way's seconds, by turn."""
    share_cores(WORKERS)
    torch.manual_seed(0)
    own = torch.rand(rows, 1, 28, 28), torch.randint(10, (rows,))
    sgd, loss = partial(torch.optim.SGD, lr=LR), nn.CrossEntropyLoss()
    pipeline = Pipeline(
        network(),
        pipedream([WORKERS]),
        optimizer=sgd,
        loss=loss,
        transport="distributed",
    )
    models = {COMPUTE: network(), WAIT_FREE: DistributedDataParallel(network())}
    ways = {way: plain_step(model, own, loss, 1, sgd) for way, model in models.items()}
    for step in ways.values():
        timed(step, 1)  # DDP arranges its buckets after its first step
    taken = []
    for turn in range(repeats):
        for way, step in ways.items():
            dist.barrier()
            taken.append((way, turn, timed(step, steps)))
        updates = pipeline.train([own] * (1 + steps) * WORKERS).trace.ends("UPDATE", worker=0)
        taken.append((ENGINE, turn, np.diff(updates).tolist()))
    return [*taken, (TRANSFER, 0, [transfer_seconds(TRANSFERRED_BYTES) for _ in range(TRANSFERS)])]
