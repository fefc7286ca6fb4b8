"""Where a pipeline pays: this engine beside what else a user could do with the cores of a machine.

    python -m experiments.benchmarks.engine                   # four networks, 20 minutes
    python -m experiments.benchmarks.engine --network gpt --stages 2 --repeats 1
    python -m experiments.benchmarks.engine --schedule interleaved --output mine

Contestants take turns in every repeat, and ratios are between runs of the same repeat; the table
shows medians. "limit" is what the cores of this machine give at once: as many processes as workers,
each of which trains its part of the layers, with nothing passing between them. A pipeline with no
more workers than cores reaches at most limit x (1 - bubble), of which ``share_of_limit`` is the
share. Run it alone: OpenMP's threads spin while they wait for a core.
"""

import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import accumulate, product
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import pandas as pd
import torch
import torch.distributed as dist
import typer
from torch import Tensor, nn
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
)
from torch.nn.parallel import DistributedDataParallel
from tqdm import tqdm

from experiments.benchmarks.harness import conclude, crew, measured, plain_step, show
from pipekit import Execution, Pipeline, models
from pipekit.choices import require_choice
from pipekit.host.operator_threads import share_cores
from pipekit.parity.launch import Ranks
from pipekit.schedules import Schedule, flush, gpipe, interleaved, replicate

SERIAL, ALL_CORES, LIMIT = "serial, one core", "serial, all cores, whole batch", "limit"
DDP, DATA_PARALLEL = "DDP", "pipekit, one stage on all"
THREADS, PROCESSES, TORCH = "pipekit, threads", "pipekit, processes", "torch pipelining"
PIPELINES = (THREADS, PROCESSES, TORCH)
CASE = ["network", "stages"]


class Network(NamedTuple):
    """A model, a batch of so many microbatches, the loss, and how many batches are timed."""

    model: Callable[[], nn.Sequential]
    batch: Callable[[int], tuple[Tensor, Tensor]]
    loss: Callable[[Any, Any], Tensor]
    timed: int


def linear_layers(width: int) -> nn.Sequential:
    return nn.Sequential(
        *[layer for _ in range(4) for layer in (nn.Linear(width, width), nn.ReLU())]
    )


def rows(width: int, each: int, microbatches: int) -> tuple[Tensor, Tensor]:
    return torch.rand(each * microbatches, width), torch.rand(each * microbatches, width)


def images(microbatches: int) -> tuple[Tensor, Tensor]:
    return torch.rand(2 * microbatches, 3, 64, 64), torch.randint(10, (2 * microbatches,))


def tokens(microbatches: int) -> tuple[Tensor, Tensor]:
    drawn = torch.randint(256, (microbatches, 65))
    return drawn[:, :-1], drawn[:, 1:]


small_gpt = partial(models.gpt, 12, 256, 4, vocabulary=256, sequence=64)
NETWORKS = {  # at width 16 the time goes into the engine
    "width 16": Network(partial(linear_layers, 16), partial(rows, 16, 32), nn.MSELoss(), timed=40),
    "width 512": Network(
        partial(linear_layers, 512), partial(rows, 512, 64), nn.MSELoss(), timed=40
    ),
    "gpt": Network(small_gpt, tokens, models.token_loss, timed=2),
    "resnet50": Network(partial(models.resnet50, 10), images, nn.CrossEntropyLoss(), timed=2),
}
METHODS: dict[str, tuple[Callable[[int, int], Schedule], Any]] = {
    "1F1B": (flush, Schedule1F1B),
    "GPipe": (gpipe, ScheduleGPipe),
    "interleaved": (
        lambda workers, m: interleaved(2 * workers, m, workers=workers),
        ScheduleInterleaved1F1B,
    ),
}
"""Ours, of workers and microbatches, and torch's."""


class Case(NamedTuple):
    """A network on so many workers, and the layers of each stage."""

    name: str
    workers: int
    microbatches: int
    schedule: str
    balance: list[int]

    @property
    def network(self) -> Network:
        return NETWORKS[self.name]

    def made(self) -> tuple[nn.Sequential, tuple[Tensor, Tensor]]:
        """Return the network with its initial weights, and its batch."""
        torch.manual_seed(0)
        return self.network.model(), self.network.batch(self.microbatches)

    def parts(self, model: nn.Sequential) -> list[nn.Sequential]:
        """Return the model's stages."""
        ends = accumulate(self.balance)
        return [model[end - layers : end] for end, layers in zip(ends, self.balance, strict=True)]


class Trained(NamedTuple):
    """Seconds of a step, and the weights after the last; none where a part of them says nothing."""

    seconds: float
    weights: list[Tensor]


def sgd(parameters: Any) -> torch.optim.SGD:
    return torch.optim.SGD(parameters, lr=0.01)


def timed(step: Callable[[], None], case: Case, model: nn.Module) -> Trained:
    """Time a step, the first one left out."""
    step()
    start = time.perf_counter()
    for _ in range(case.network.timed):
        step()
    seconds = (time.perf_counter() - start) / case.network.timed
    return Trained(seconds, [p.detach() for p in model.parameters()])


def serial(case: Case, workers: int, parts: int) -> Trained:
    """Train in this process, with the cores that one of so many workers has."""
    share_cores(workers)
    model, batch = case.made()
    return timed(plain_step(model, batch, case.network.loss, parts, sgd), case, model)


def ours(case: Case, transport: str, data_parallel: bool = False) -> Trained:
    """Train by pipekit's engine."""
    share_cores(case.workers)
    model, batch = case.made()
    alone, m = replicate(flush(1, 1), case.workers), case.microbatches
    pipeline = Pipeline(
        model,
        alone if data_parallel else METHODS[case.schedule][0](case.workers, m),
        balance=[sum(case.balance)] if data_parallel else case.balance,
        optimizer=sgd,
        loss=case.network.loss,
        transport=transport,
        execution=Execution(devices=["cpu"] * case.workers),
    )
    frame = pipeline.train([batch] * (1 + case.network.timed)).trace.frame
    weights = pipeline.state_dict()
    pipeline.close()
    ends = frame[frame["op"] == "UPDATE"].groupby("version")["end_s"].max().tolist()
    seconds = float(ends[-1] - ends[0]) / case.network.timed
    return Trained(seconds, [weights[name] for name, _ in model.named_parameters()])


def alone(rank: int, case: Case) -> Trained:
    """Train one stage alone, fed with what it would receive."""
    model, (x, y) = case.made()
    stages = case.parts(model)
    loss = case.network.loss
    with torch.no_grad():
        for stage in stages[:rank]:
            x = stage(x)
        if rank + 1 < len(stages):
            y = torch.zeros_like(stages[rank](x))
    if rank:
        x.requires_grad_()
    if rank + 1 < len(stages):
        loss = _product
    dist.barrier()
    step = plain_step(stages[rank], (x, y), loss, case.microbatches, sgd)
    return timed(step, case, stages[rank])


def _product(output: Tensor, gradient: Tensor) -> Tensor:
    return (output * gradient).sum()


def by_torch(rank: int, case: Case) -> Trained:
    """Train this process's stages by torch.distributed.pipelining."""
    model, (x, y) = case.made()
    stages = len(case.balance)
    own = nn.ModuleDict(
        {str(n): s for n, s in enumerate(case.parts(model)) if n % case.workers == rank}
    )
    optimizer = sgd(own.parameters())
    here = [PipelineStage(s, int(n), stages, torch.device("cpu")) for n, s in own.items()]
    # Gradients are divided by the number of microbatches: the loss is the mean of the batch.
    schedule = METHODS[case.schedule][1](
        here if case.schedule == "interleaved" else here[0],
        case.microbatches,
        loss_fn=case.network.loss,
        scale_grads=True,
    )
    last = rank == case.workers - 1

    def step() -> None:
        schedule.step(*([x] if rank == 0 else []), **({"target": y, "losses": []} if last else {}))
        optimizer.step()
        optimizer.zero_grad()

    dist.barrier()
    return timed(step, case, own)


def ddp(rank: int, case: Case) -> Trained:
    """Train by DistributedDataParallel, a part of the batch a process."""
    model, batch = case.made()
    x, y = (tensor.tensor_split(dist.get_world_size())[rank] for tensor in batch)
    dist.barrier()
    replica = DistributedDataParallel(model)
    return timed(plain_step(replica, (x, y), case.network.loss, 1, sgd), case, replica)


def slowest(peers: Ranks, function: Callable[[int, Case], Trained], case: Case) -> Trained:
    """Return the seconds of the slowest process."""
    return Trained(max(each.seconds for each in peers.call(function, case)), [])


def contestants(case: Case, peers: Ranks) -> dict[str, Callable[[], Trained]]:
    """Return how to train by each."""
    whole = case._replace(balance=balanced(case, case.workers))
    return {
        SERIAL: lambda: serial(case, case.workers, case.microbatches),
        ALL_CORES: lambda: serial(case, 1, 1)._replace(weights=[]),
        LIMIT: lambda: slowest(peers, alone, whole),
        THREADS: lambda: ours(case, "threads"),
        PROCESSES: lambda: ours(case, "distributed"),
        TORCH: lambda: slowest(peers, by_torch, case),
        DDP: lambda: slowest(peers, ddp, case),
        DATA_PARALLEL: lambda: ours(case, "distributed", True)._replace(weights=[]),
    }


def raced(case: Case, peers: Ranks, repeats: int) -> Iterator[dict[str, Any]]:
    """Train by each contestant in turn, and yield a row a run."""
    entered = contestants(case, peers)
    runs = product(range(repeats), entered)
    plain: list[Tensor] = []
    for repeat, contestant in tqdm(runs, total=repeats * len(entered), desc=case.name):
        seconds, weights = entered[contestant]()
        if contestant == SERIAL:
            plain = weights
        run = dict(zip([*CASE, "repeat"], (case.name, case.workers, repeat), strict=True))
        equal = all(map(torch.equal, weights, plain)) if weights else None
        yield run | {"contestant": contestant, "seconds": seconds, "bit_equal": equal}


def balanced(case: Case, stages: int) -> list[int]:
    """Return the layers of each stage, as "auto" has them."""
    model, batch = case.made()
    loss = case.network.loss
    pipeline = Pipeline(model, flush(stages, case.microbatches), optimizer=sgd, loss=loss)
    pipeline.evaluate([batch])
    assert pipeline.balance
    return pipeline.balance


def summarise(runs: pd.DataFrame, passes: int, cores: int) -> pd.DataFrame:
    """Return a row for each case and contestant: medians, with ratios between runs of one repeat.

    ``passes`` are each worker's forwards in a batch.
    """
    table = []
    for (network, stages), case in runs.groupby(CASE, sort=False):
        seconds = case.pivot_table(index="repeat", columns="contestant", values="seconds")
        bubble = (stages - 1) / (passes + stages - 1)  # the share in which a worker is idle
        for contestant in case["contestant"].unique():
            own = seconds[contestant]
            faster, share = seconds[SERIAL] / own, seconds[LIMIT] / own / (1 - bubble)
            held = contestant in PIPELINES and stages <= cores
            row = {"network": network, "stages": stages, "contestant": contestant}
            row |= {"ms": 1e3 * own.median(), "vs_serial": faster.median()}
            row |= {"vs_serial_min": faster.min(), "vs_serial_max": faster.max()}
            row["vs_torch"] = (seconds[TORCH] / own).median() if TORCH in seconds else None
            row["vs_ddp"] = (seconds[DDP] / own).median()
            table.append(row | {"share_of_limit": share.median() if held else None})
    return pd.DataFrame(table)


def where_it_pays(summary: pd.DataFrame) -> pd.DataFrame:
    """Return the best pipeline of each case, and the best of what needs none, beside one core."""
    table = []
    for (network, stages), case in summary.groupby(CASE, sort=False):
        faster = case.set_index("contestant")["vs_serial"]
        row = {"network": network, "stages": stages}
        for kind, members in (("pipeline", PIPELINES), ("other", (SERIAL, ALL_CORES, DDP))):
            own = faster[faster.index.isin(members)]
            row |= {kind: own.idxmax(), f"{kind}_vs_serial": own.max()}
        table.append(row)
    return pd.DataFrame(table)


def main(
    network: Annotated[list[str] | None, typer.Option(help=f"{', '.join(NETWORKS)}.")] = None,
    stages: Annotated[list[int] | None, typer.Option(help="Default: 2 and 4.")] = None,
    microbatches: Annotated[int, typer.Option(min=1, help="In a batch.")] = 16,
    schedule: Annotated[str, typer.Option(help=f"{', '.join(METHODS)}.")] = "1F1B",
    repeats: Annotated[int, typer.Option(min=1, help="Runs of each.")] = 3,
    output: Annotated[Path | None, typer.Option(help="Folder to write the tables to.")] = None,
) -> None:
    """Time networks in a pipeline, beside what else the cores of this machine can do."""
    require_choice("schedule", schedule, METHODS)
    for name in network or []:
        require_choice("network", name, NETWORKS)
    record = measured(0, microbatches=microbatches, schedule=schedule)
    chunks = 2 if schedule == "interleaved" else 1  # stages a worker
    rows: list[dict[str, Any]] = []
    for workers in stages or [2, 4]:
        with crew(workers) as peers, torch.random.fork_rng():
            for name in network or NETWORKS:
                case = Case(name, workers, microbatches, schedule, [])
                case = case._replace(balance=balanced(case, chunks * workers))
                rows += raced(case, peers, repeats)
    runs = pd.DataFrame(rows)
    print(f"{schedule}, {microbatches} microbatches (measured)")
    summary = summarise(runs, chunks * microbatches, record["cores"])
    show(summary)
    conclude("networks", runs, record, output)
    conclude("where_it_pays", where_it_pays(summary), record, output)


if __name__ == "__main__":
    typer.run(main)
