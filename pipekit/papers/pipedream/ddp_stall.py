"""Communication stalls of real data-parallel training over slow links (PipeDream, section 2.1).

Two workers, each in a network of its own, train one model: with PyTorch's DistributedDataParallel
(DDP), which sends a bucket of gradients as soon as the backward has computed it (wait-free
backpropagation), with all gradients summed after the backward, and with pipekit's engine, for which
data parallelism is a single stage on two workers (section 4).  The links are really slow: see
:mod:`pipekit.clusters.namespaces`.

Started as a program, this module is one of the workers.
"""

import json
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pandas as pd
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

from pipekit.clusters import namespaces
from pipekit.clusters.rates import bytes_per_second
from pipekit.clusters.traffic import all_reduce_bytes
from pipekit.engine import Pipeline
from pipekit.operator_threads import share_cores
from pipekit.schedules import pipedream

WORKERS = 2
LR = 0.01
TRANSFERRED_BYTES, TRANSFERS = 25_690_112, 5  # what pool3 of VGG16 puts out, for 32 images

COMPUTE = "compute alone"
WAIT_FREE = "DDP, wait-free"
AFTER = "sums after the backward"
ENGINE = "pipekit, one stage on 2 workers"

Step = Callable[[Tensor, Tensor], None]


@dataclass(frozen=True)
class Measured:
    """What two workers took over links of one rate.

    Attributes:
        link: the rate as ``tc`` writes it, or None for no limit.
        steps: seconds of each step, from the end of one update to the end of the next, by way of
            training.
        transfers: seconds of each transfer of ``TRANSFERRED_BYTES`` from one worker to the other.
    """

    link: str | None
    steps: dict[str, list[float]]
    transfers: list[float]

    @property
    def transfer_ratio(self) -> float:
        """The median transfer's seconds over bytes / bandwidth (section 3.2)."""
        assert self.link is not None
        predicted = TRANSFERRED_BYTES / bytes_per_second(self.link)
        return float(np.median(self.transfers)) / predicted

    @property
    def exchange_s(self) -> float:
        """Seconds that the exchange of all gradients takes at the link's rate; 0 without limit."""
        if self.link is None:
            return 0.0
        parameter_bytes = sum(p.nbytes for p in network().parameters())
        return all_reduce_bytes(parameter_bytes, WORKERS) / bytes_per_second(self.link)

    def step_s(self, way: str) -> float:
        """Return the median step of a way of training."""
        return float(np.median(self.steps[way]))

    def stall_s(self, way: str) -> float:
        """Return the seconds of a median step in which nothing is computed."""
        return self.step_s(way) - self.step_s(COMPUTE)

    @property
    def throughput_ratio(self) -> float:
        """Our engine's throughput over DDP's."""
        return self.step_s(WAIT_FREE) / self.step_s(ENGINE)


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


def measure(link: str | None, rows: int, steps: int, repeats: int) -> Measured:
    """Train on two workers behind links of a rate.

    Args:
        link: as ``tc`` writes it, say "300mbit", or None for no limit.
        rows: of a worker's minibatch.
        steps: of each way of training in a row.
        repeats: how often every way has its turn: a shared machine is not always equally fast.

    Raises:
        OSError: this machine or this user cannot have network namespaces.
        RuntimeError: a worker failed; the message is what the workers said.
    """
    with TemporaryDirectory() as folder:
        path = Path(folder, "measured.json")
        numbers = [str(number) for number in (rows, steps, repeats)]
        command = [sys.executable, "-m", __name__, str(path), *numbers]
        said = StringIO()
        with redirect_stdout(said), redirect_stderr(said):
            failed = namespaces.run(command, WORKERS, link)
        if failed:
            raise RuntimeError(f"a worker failed with exit code {failed}:\n{said.getvalue()}")
        return Measured(link, **json.loads(path.read_text(encoding="utf-8")))


def table(results: Iterable[Measured]) -> pd.DataFrame:
    """Return a row a link and way of training: link, way, step_ms, stall_ms, stall_percent."""
    rows = []
    for result in results:
        for way in (WAIT_FREE, AFTER, ENGINE):
            step, stall = result.step_s(way), result.stall_s(way)
            link = result.link or "no limit"
            rows.append((link, way, 1e3 * step, 1e3 * stall, 100 * stall / step))
    return pd.DataFrame(rows, columns=["link", "way", "step_ms", "stall_ms", "stall_percent"])


def timed(step: Step, batches: Iterable[tuple[Tensor, Tensor]]) -> list[float]:
    """Return the seconds from the end of each step to the end of the next."""
    ends = []
    for inputs, targets in batches:
        step(inputs, targets)
        ends.append(time.perf_counter())
    return [after - before for before, after in pairwise(ends)]


def alone(model: nn.Module) -> Step:
    """Return a step that computes and updates, and exchanges nothing."""
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)

    def step(inputs: Tensor, targets: Tensor) -> None:
        optimizer.zero_grad()
        F.cross_entropy(model(inputs), targets).backward()
        optimizer.step()

    return step


def summed_after(model: nn.Module) -> Step:
    """Return a step that sums the gradients once the backward is done."""
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)

    def step(inputs: Tensor, targets: Tensor) -> None:
        optimizer.zero_grad()
        F.cross_entropy(model(inputs), targets).backward()
        for parameter in model.parameters():
            assert parameter.grad is not None
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()
        optimizer.step()

    return step


def of_engine(pipeline: Pipeline, batches: list[tuple[Tensor, Tensor]]) -> list[float]:
    """Return the seconds from update to update of pipekit's engine."""
    frame = pipeline.train(batches).trace.frame
    updates = frame[(frame["op"] == "UPDATE") & (frame["worker"] == 0)]
    return [float(seconds) for seconds in updates["end_s"].diff()[1:]]


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
        lambda minibatches: pipedream([WORKERS], minibatches),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=LR),
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
