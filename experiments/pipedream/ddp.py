"""Communication stalls of real data-parallel training over slow links (PipeDream, section 2.1).

Two workers, each in a network of its own, train one model: with PyTorch's DistributedDataParallel
(DDP), which sends a bucket of gradients as soon as the backward has computed it (wait-free
backpropagation), with all gradients summed after the backward, and with pipekit's engine, for which
data parallelism is a single stage on two workers (section 4).  The links are really slow: see
:mod:`pipekit.clusters.namespaces`.  :func:`measure` starts this module as a program, twice.
"""

import json
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from functools import partial
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

from pipekit.clusters import namespaces
from pipekit.clusters.paths import all_reduce_bytes
from pipekit.clusters.rates import bytes_per_second
from pipekit.engine import Pipeline
from pipekit.host.operator_threads import share_cores
from pipekit.schedules import pipedream

WORKERS = 2
LR = 0.01
TRANSFERRED_BYTES, TRANSFERS = 25_690_112, 5  # what pool3 of VGG16 puts out, for 32 images

COMPUTE = "compute alone"
WAYS = WAIT_FREE, AFTER, ENGINE = (
    "DDP, wait-free",
    "sums after the backward",
    "pipekit, one stage on 2 workers",
)
"""Of training with both workers."""

Step = Callable[[Tensor, Tensor], None]


class Measured(NamedTuple):
    """What two workers took over links of one rate, ``link`` as ``tc`` writes it or None.

    ``steps`` are seconds from one update to the next, [turns, steps], by way of training;
    ``transfers`` seconds of each transfer of ``TRANSFERRED_BYTES`` from one worker to the other.
    """

    link: str | None
    steps: Mapping[str, Sequence[Sequence[float]]]
    transfers: Sequence[float]

    @property
    def bytes_per_s(self) -> float:
        """The rate; without a limit infinite."""
        return bytes_per_second(self.link) if self.link else float("inf")

    @property
    def transfer_ratio(self) -> float:
        """The median transfer's seconds over bytes / bandwidth (section 3.2)."""
        return float(np.median(self.transfers)) * self.bytes_per_s / TRANSFERRED_BYTES

    @property
    def exchange_s(self) -> float:
        """Seconds that the exchange of all gradients takes at the link's rate."""
        parameter_bytes = sum(p.nbytes for p in network().parameters())
        return all_reduce_bytes(parameter_bytes, WORKERS) / self.bytes_per_s

    def step_s(self, way: str) -> float:
        """Return the median step of a way of training."""
        return float(np.median(self.steps[way]))

    def stall_s(self, way: str) -> float:
        """Return the seconds of a median step in which nothing is computed."""
        return self.step_s(way) - self.step_s(COMPUTE)

    @property
    def throughput_ratios(self) -> list[float]:
        """Our engine's throughput over DDP's in each turn."""
        ddp, engine = (np.median(self.steps[way], axis=1) for way in (WAIT_FREE, ENGINE))
        return [float(ratio) for ratio in ddp / engine]


def measure(link: str | None, rows: int, steps: int, repeats: int) -> Measured:
    """Train on two workers behind links of a rate, "300mbit" as ``tc`` writes it, or None.

    Every way of training takes ``steps`` in a row, in ``repeats`` turns: a shared machine is not
    always equally fast. Without network namespaces it is an OSError; a worker that fails is a
    RuntimeError with what the workers said.
    """
    with TemporaryDirectory() as folder:
        path = Path(folder, "measured.json")
        numbers = [str(number) for number in (rows, steps, repeats)]
        said = StringIO()
        with redirect_stdout(said), redirect_stderr(said):
            command = [sys.executable, "-m", __name__, str(path), *numbers]
            failed = namespaces.run(command, WORKERS, link)
        if failed:
            raise RuntimeError(f"a worker failed with exit code {failed}:\n{said.getvalue()}")
        return Measured(link, **json.loads(path.read_text(encoding="utf-8")))


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
    """Return the seconds from each update to the next."""
    updates = []
    for inputs, targets in batches:
        step(inputs, targets)
        updates.append(time.perf_counter())
    return np.diff(updates).tolist()


def step_of(model: nn.Module, before_update: Callable[[nn.Module], None] | None = None) -> Step:
    """Return a step of the ordinary loop, with something done between backward and update."""
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)

    def step(inputs: Tensor, targets: Tensor) -> None:
        optimizer.zero_grad()
        F.cross_entropy(model(inputs), targets).backward()
        if before_update:
            before_update(model)
        optimizer.step()

    return step


def average_gradients(model: nn.Module) -> None:
    """Replace a model's gradients by their mean over the workers."""
    for parameter in model.parameters():
        assert parameter.grad is not None
        dist.all_reduce(parameter.grad)
        parameter.grad /= dist.get_world_size()


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


def train(path: Path, rows: int, steps: int, repeats: int) -> None:
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
        COMPUTE: step_of(network()),
        WAIT_FREE: step_of(DistributedDataParallel(network())),
        AFTER: step_of(network(), average_gradients),
    }
    for step in ways.values():
        timed(step, own[:2])  # DDP arranges its buckets after its first step
    taken: dict[str, list[list[float]]] = {way: [] for way in (*ways, ENGINE)}
    for _ in range(repeats):
        for way, step in ways.items():
            dist.barrier()
            taken[way].append(timed(step, own))
        updates = pipeline.train(own * WORKERS).trace.ends("UPDATE", worker=0)
        taken[ENGINE].append(np.diff(updates).tolist())
    transfers = [transfer_seconds() for _ in range(TRANSFERS)]
    if dist.get_rank() == 0:
        path.write_text(json.dumps({"steps": taken, "transfers": transfers}), encoding="utf-8")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    train(Path(sys.argv[1]), *map(int, sys.argv[2:]))
