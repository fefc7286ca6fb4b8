"""Where a pipeline pays: real networks on two cores, beside what else a user could do with them.

    python experiments/benchmarks/networks.py                   # three networks, 6 minutes
    python experiments/benchmarks/networks.py --network gpt --repeats 1

Two workers, 1F1B, 16 microbatches a batch.  In every repeat each contestant trains the same network
for a few batches, one after the other, and ratios are between runs of the same repeat; the table
shows medians.  "limit" is what two cores of this machine give at once: each of two processes trains
its half of the layers, and nothing passes between them.  A pipeline of two stages reaches at most
limit x (1 - bubble), of which the last column is the share.
"""

import os
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import pandas as pd
import torch
import torch.distributed as dist
import typer
from crew import Crew
from outcome import conclude, wide_console
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.nn.parallel import DistributedDataParallel
from tqdm import tqdm

from pipekit import Pipeline, models
from pipekit.operator_threads import share_cores
from pipekit.provenance import provenance
from pipekit.schedules import flush, replicate

STAGES = 2
MICROBATCHES = 16
WARM_UP, TIMED = 1, 3
"""Batches before the clock starts, and on it."""
BUBBLE = (STAGES - 1) / (MICROBATCHES + STAGES - 1)


class Network(NamedTuple):
    """What is trained: a model, a batch for it, and the loss."""

    model: Callable[[], nn.Sequential]
    batch: Callable[[], tuple[Tensor, Tensor]]
    loss: Callable[[Any, Any], Tensor]


def wide_layers() -> nn.Sequential:
    """Return 8 layers of width 512."""
    return nn.Sequential(*[layer for _ in range(4) for layer in (nn.Linear(512, 512), nn.ReLU())])


def small_gpt() -> nn.Sequential:
    """Return a GPT of 10 million parameters."""
    return models.gpt(12, 256, 4, vocabulary=256, sequence=64)


def small_images() -> tuple[Tensor, Tensor]:
    """Return 32 images of 64 pixels."""
    return torch.rand(2 * MICROBATCHES, 3, 64, 64), torch.randint(10, (2 * MICROBATCHES,))


def tokens() -> tuple[Tensor, Tensor]:
    """Return 16 sequences of 64 bytes."""
    drawn = torch.randint(256, (MICROBATCHES, 65))
    return drawn[:, :-1], drawn[:, 1:]


NETWORKS = {
    "width 512": Network(
        wide_layers,
        lambda: (torch.rand(64 * MICROBATCHES, 512), torch.rand(64 * MICROBATCHES, 512)),
        nn.MSELoss(),
    ),
    "gpt": Network(small_gpt, tokens, models.token_loss),
    "resnet50": Network(partial(models.resnet50, 10), small_images, nn.CrossEntropyLoss()),
}


def made(name: str) -> tuple[nn.Sequential, tuple[Tensor, Tensor]]:
    """Return a network with its initial weights, and its batch."""
    torch.manual_seed(0)
    return NETWORKS[name].model(), NETWORKS[name].batch()


def sgd(parameters: Any) -> torch.optim.SGD:
    return torch.optim.SGD(parameters, lr=0.01)


def timed(step: Callable[[], None]) -> float:
    """Return the seconds of a step."""
    for _ in range(WARM_UP):
        step()
    start = time.perf_counter()
    for _ in range(TIMED):
        step()
    return (time.perf_counter() - start) / TIMED


def loop(model: nn.Module, batch: tuple[Tensor, Tensor], loss: Any, parts: int) -> float:
    """Return the seconds of a plain loop's step over a batch in so many parts."""
    optimizer = sgd(model.parameters())
    pieces = [tensor.tensor_split(parts) for tensor in batch]

    def step() -> None:
        for x, y in zip(*pieces, strict=True):
            (loss(model(x), y) / parts).backward()
        optimizer.step()
        optimizer.zero_grad()

    return timed(step)


def serial(name: str, cores: int, parts: int) -> float:
    """Return the seconds of a step in this process."""
    share_cores(STAGES if cores == 1 else 1)
    model, batch = made(name)
    return loop(model, batch, NETWORKS[name].loss, parts)


def ours(name: str, transport: str, balance: list[int], replicas: int = 1) -> float:
    """Return the seconds of a step of pipekit's engine."""
    share_cores(STAGES)
    model, batch = made(name)

    def schedule(batches: int) -> Any:
        if replicas > 1:
            return replicate(flush(1, 1, batches), replicas)
        return flush(STAGES, MICROBATCHES, batches)

    pipeline = Pipeline(
        model,
        schedule,
        balance=[sum(balance)] if replicas > 1 else balance,
        optimizer=sgd,
        loss=NETWORKS[name].loss,
        transport=transport,
        devices=["cpu"] * STAGES,
    )
    frame = pipeline.train([batch] * (WARM_UP + TIMED)).trace.frame
    pipeline.close()
    ends = frame[frame["op"] == "UPDATE"].groupby("microbatch")["end_s"].max().tolist()
    return float(ends[-1] - ends[WARM_UP - 1]) / TIMED


def half(rank: int, name: str, balance: list[int]) -> float:
    """Return the seconds of a step of one stage alone, fed with what it would receive."""
    model, (x, y) = made(name)
    first, last = model[: balance[0]], model[balance[0] :]
    if rank:
        with torch.no_grad():
            x = first(x)
        x.requires_grad_()
        dist.barrier()
        return loop(last, (x, y), NETWORKS[name].loss, MICROBATCHES)
    with torch.no_grad():
        gradient = torch.zeros_like(first(x))
    dist.barrier()
    return loop(first, (x, gradient), lambda output, g: (output * g).sum(), MICROBATCHES)


def torch_pipelining(rank: int, name: str, balance: list[int]) -> float:
    """Return the seconds of a step of torch.distributed.pipelining."""
    model, (x, y) = made(name)
    part = model[: balance[0]] if rank == 0 else model[balance[0] :]
    optimizer = sgd(part.parameters())
    stage = PipelineStage(part, rank, STAGES, torch.device("cpu"))
    schedule = Schedule1F1B(stage, MICROBATCHES, loss_fn=NETWORKS[name].loss, scale_grads=True)

    def step() -> None:
        if rank == 0:
            schedule.step(x)
        else:
            schedule.step(target=y, losses=[])
        optimizer.step()
        optimizer.zero_grad()

    dist.barrier()
    return timed(step)


def ddp(rank: int, name: str) -> float:
    """Return the seconds of a step of DistributedDataParallel, half of the batch a process."""
    model, batch = made(name)
    own = tuple(tensor.tensor_split(STAGES)[rank] for tensor in batch)
    dist.barrier()
    return loop(DistributedDataParallel(model), (own[0], own[1]), NETWORKS[name].loss, 1)


SERIAL, LIMIT, DDP = "serial, one core", "limit", "DDP, 2 processes"
DATA_PARALLEL = "pipekit, one stage on 2 processes"
PIPELINES = ("pipekit, threads", "pipekit, processes", "torch pipelining")


def contestants(name: str, balance: list[int], crew: Crew) -> dict[str, Callable[[], float]]:
    """Return what returns the seconds of a step of each."""
    return {
        SERIAL: lambda: serial(name, 1, MICROBATCHES),
        "serial, all cores, whole batch": lambda: serial(name, STAGES, 1),
        LIMIT: lambda: max(crew.call(half, name, balance)),
        PIPELINES[0]: lambda: ours(name, "threads", balance),
        PIPELINES[1]: lambda: ours(name, "distributed", balance),
        PIPELINES[2]: lambda: max(crew.call(torch_pipelining, name, balance)),
        DDP: lambda: max(crew.call(ddp, name)),
        DATA_PARALLEL: lambda: ours(name, "distributed", balance, STAGES),
    }


def balanced(name: str) -> list[int]:
    """Return the layers of each stage, as "auto" has them."""
    model, batch = made(name)
    pipeline = Pipeline(
        model, lambda n: flush(STAGES, MICROBATCHES, n), optimizer=sgd, loss=NETWORKS[name].loss
    )
    pipeline.evaluate([batch])
    assert pipeline.balance
    return pipeline.balance


def summarise(name: str, runs: list[dict[str, float]]) -> list[dict[str, Any]]:
    """Return a row for each contestant: medians over the repeats."""
    rows = []
    for contestant in runs[0]:
        faster = [run[SERIAL] / run[contestant] for run in runs]
        shares = [run[LIMIT] / run[contestant] / (1 - BUBBLE) for run in runs]
        rows.append(
            {
                "network": name,
                "contestant": contestant,
                "ms": 1e3 * statistics.median(run[contestant] for run in runs),
                "vs_serial": statistics.median(faster),
                "vs_serial_min": min(faster),
                "vs_serial_max": max(faster),
                "share_of_limit": statistics.median(shares) if contestant in PIPELINES else None,
                "vs_ddp": statistics.median(run[DDP] / run[contestant] for run in runs)
                if contestant == DATA_PARALLEL
                else None,
            }
        )
    return rows


def show(table: pd.DataFrame, console: Console) -> None:
    shown = Table(title=f"1F1B, {STAGES} stages, {MICROBATCHES} microbatches (measured)")
    for heading in ("network", "contestant", "ms a batch", "x serial", "min-max"):
        shown.add_column(heading, justify="right", no_wrap=True)
    for heading in ("of limit x (1 - bubble)", "x DDP"):
        shown.add_column(heading, justify="right")
    for name, rows in table.groupby("network", sort=False):
        for row in rows.itertuples():
            shown.add_row(
                str(name),
                row.contestant,
                f"{row.ms:,.1f}",
                f"{row.vs_serial:.2f}",
                f"{row.vs_serial_min:.2f}-{row.vs_serial_max:.2f}",
                "" if pd.isna(row.share_of_limit) else f"{row.share_of_limit:.0%}",
                "" if pd.isna(row.vs_ddp) else f"{row.vs_ddp:.2f}",
            )
        shown.add_section()
    console.print(shown)


def main(
    network: Annotated[list[str] | None, typer.Option(help=f"{', '.join(NETWORKS)}.")] = None,
    repeats: Annotated[int, typer.Option(min=1, help="Runs of each.")] = 3,
    output: Annotated[
        Path | None, typer.Option(help="Folder to write networks.csv and networks.json to.")
    ] = None,
) -> None:
    """Time real networks in a pipeline of two stages, beside what else two cores can do."""
    if unknown := set(network or ()) - NETWORKS.keys():
        raise typer.BadParameter(f"no network {', '.join(unknown)}, only {', '.join(NETWORKS)}")
    rows, load = [], os.getloadavg()[0]
    with Crew(STAGES) as crew, torch.random.fork_rng():
        for name in network or NETWORKS:
            entered = contestants(name, balanced(name), crew)
            runs = []
            with tqdm(total=repeats * len(entered), desc=name, unit="run") as bar:
                for _ in range(repeats):
                    taken = {}
                    for contestant, seconds in entered.items():
                        bar.set_postfix_str(contestant)
                        taken[contestant] = seconds()
                        bar.update()
                    runs.append(taken)
            rows += summarise(name, runs)
    table = pd.DataFrame(rows)
    record = provenance(
        "measured", seed=0, repeats=repeats, bubble=BUBBLE, load_average_at_start=load
    )
    console = wide_console()
    show(table, console)
    conclude(console, "networks", table, record, output)


if __name__ == "__main__":
    typer.run(main)
