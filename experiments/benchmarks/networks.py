"""Where a pipeline pays: real networks on a few cores, beside what else a user could do with them.

    python -m experiments.benchmarks.networks                   # three networks, 15 minutes
    python -m experiments.benchmarks.networks --network gpt --stages 2 --repeats 1
    python -m experiments.benchmarks.networks --output mine --append      # one more repeat, there

1F1B, 16 microbatches a batch, a worker a stage.  In every repeat each contestant trains the same
network for a few batches, one after the other, and ratios are between runs of the same repeat; the
table shows medians.  "limit" is what the cores of this machine give at once: each of as many
processes trains its part of the layers, and nothing passes between them.  A pipeline with no more
stages than cores reaches at most limit x (1 - bubble), of which the last column is the share.
"""

import time
from collections.abc import Callable
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import pandas as pd
import torch
import torch.distributed as dist
import typer
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.nn.parallel import DistributedDataParallel
from tqdm import tqdm

from experiments.benchmarks.harness import Crew, conclude, crew, measured, show
from experiments.benchmarks.where_it_pays import (
    ALL_CORES,
    CASE,
    DATA_PARALLEL,
    DDP,
    LIMIT,
    PIPELINES,
    SERIAL,
    summarise,
    write_page,
)
from pipekit import Execution, Pipeline, models
from pipekit.choices import require_choice
from pipekit.host.operator_threads import share_cores
from pipekit.schedules import flush, replicate

MICROBATCHES = 16


class Network(NamedTuple):
    """A model, a batch of 16 microbatches, the loss, and how many batches are timed."""

    model: Callable[[], nn.Sequential]
    batch: Callable[[], tuple[Tensor, Tensor]]
    loss: Callable[[Any, Any], Tensor]
    timed: int


def wide_layers() -> nn.Sequential:
    return nn.Sequential(*[layer for _ in range(4) for layer in (nn.Linear(512, 512), nn.ReLU())])


def rows() -> tuple[Tensor, Tensor]:
    return torch.rand(64 * MICROBATCHES, 512), torch.rand(64 * MICROBATCHES, 512)


def images() -> tuple[Tensor, Tensor]:
    return torch.rand(2 * MICROBATCHES, 3, 64, 64), torch.randint(10, (2 * MICROBATCHES,))


def tokens() -> tuple[Tensor, Tensor]:
    drawn = torch.randint(256, (MICROBATCHES, 65))
    return drawn[:, :-1], drawn[:, 1:]


small_gpt = partial(models.gpt, 12, 256, 4, vocabulary=256, sequence=64)
NETWORKS = {
    "width 512": Network(wide_layers, rows, nn.MSELoss(), timed=40),
    "gpt": Network(small_gpt, tokens, models.token_loss, timed=2),
    "resnet50": Network(partial(models.resnet50, 10), images, nn.CrossEntropyLoss(), timed=2),
}


def made(name: str) -> tuple[nn.Sequential, tuple[Tensor, Tensor]]:
    """Return a network with its initial weights, and its batch."""
    torch.manual_seed(0)
    return NETWORKS[name].model(), NETWORKS[name].batch()


def sgd(parameters: Any) -> torch.optim.SGD:
    return torch.optim.SGD(parameters, lr=0.01)


def timed(step: Callable[[], None], name: str) -> float:
    """Return the seconds of a network's step, the first one left out."""
    step()
    start = time.perf_counter()
    for _ in range(NETWORKS[name].timed):
        step()
    return (time.perf_counter() - start) / NETWORKS[name].timed


def loop(model: nn.Module, batch: tuple[Tensor, Tensor], loss: Any, parts: int, name: str) -> float:
    """Return the seconds of a plain loop's step over a batch in so many parts."""
    optimizer = sgd(model.parameters())
    pieces = [tensor.tensor_split(parts) for tensor in batch]

    def step() -> None:
        for x, y in zip(*pieces, strict=True):
            (loss(model(x), y) / parts).backward()
        optimizer.step()
        optimizer.zero_grad()

    return timed(step, name)


def serial(name: str, workers: int, parts: int) -> float:
    """Return the seconds of a step in this process, with the cores that one of so many has."""
    share_cores(workers)
    model, batch = made(name)
    return loop(model, batch, NETWORKS[name].loss, parts, name)


def ours(name: str, transport: str, balance: list[int], replicated: bool = False) -> float:
    """Return the seconds of a step of pipekit's engine."""
    stages = len(balance)
    share_cores(stages)
    model, batch = made(name)
    alone, piped = replicate(flush(1, 1), stages), flush(stages, MICROBATCHES)
    pipeline = Pipeline(
        model,
        alone if replicated else piped,
        balance=[sum(balance)] if replicated else balance,
        optimizer=sgd,
        loss=NETWORKS[name].loss,
        transport=transport,
        execution=Execution(devices=["cpu"] * stages),
    )
    timed = NETWORKS[name].timed
    frame = pipeline.train([batch] * (1 + timed)).trace.frame
    pipeline.close()
    ends = frame[frame["op"] == "UPDATE"].groupby("microbatch")["end_s"].max().tolist()
    return float(ends[-1] - ends[0]) / timed


def parted(model: nn.Sequential, balance: list[int]) -> list[nn.Sequential]:
    """Return the model's stages."""
    ends = [*accumulate(balance)]
    return [model[end - layers : end] for end, layers in zip(ends, balance, strict=True)]


def alone(rank: int, name: str, balance: list[int]) -> float:
    """Return the seconds of a step of one stage alone, fed with what it would receive."""
    model, (x, y) = made(name)
    stages = parted(model, balance)
    loss = NETWORKS[name].loss
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
    return loop(stages[rank], (x, y), loss, MICROBATCHES, name)


def _product(output: Tensor, gradient: Tensor) -> Tensor:
    return (output * gradient).sum()


def torch_pipelining(rank: int, name: str, balance: list[int]) -> float:
    """Return the seconds of a step of torch.distributed.pipelining."""
    model, (x, y) = made(name)
    part = parted(model, balance)[rank]
    optimizer = sgd(part.parameters())
    stage = PipelineStage(part, rank, len(balance), torch.device("cpu"))
    schedule = Schedule1F1B(stage, MICROBATCHES, loss_fn=NETWORKS[name].loss, scale_grads=True)
    last = rank == len(balance) - 1

    def step() -> None:
        schedule.step(*([x] if rank == 0 else []), **({"target": y, "losses": []} if last else {}))
        optimizer.step()
        optimizer.zero_grad()

    dist.barrier()
    return timed(step, name)


def ddp(rank: int, name: str) -> float:
    """Return the seconds of a step of DistributedDataParallel, a part of the batch a process."""
    model, batch = made(name)
    own = tuple(tensor.tensor_split(dist.get_world_size())[rank] for tensor in batch)
    dist.barrier()
    return loop(DistributedDataParallel(model), (own[0], own[1]), NETWORKS[name].loss, 1, name)


def contestants(name: str, balance: list[int], peers: Crew) -> dict[str, Callable[[], float]]:
    """Return what returns the seconds of a step of each."""
    return {
        SERIAL: lambda: serial(name, len(balance), MICROBATCHES),
        ALL_CORES: lambda: serial(name, 1, 1),
        LIMIT: lambda: max(peers.call(alone, name, balance)),
        PIPELINES[0]: lambda: ours(name, "threads", balance),
        PIPELINES[1]: lambda: ours(name, "distributed", balance),
        PIPELINES[2]: lambda: max(peers.call(torch_pipelining, name, balance)),
        DDP: lambda: max(peers.call(ddp, name)),
        DATA_PARALLEL: lambda: ours(name, "distributed", balance, replicated=True),
    }


def balanced(name: str, stages: int) -> list[int]:
    """Return the layers of each stage, as "auto" has them."""
    model, batch = made(name)
    pipeline = Pipeline(model, flush(stages, MICROBATCHES), optimizer=sgd, loss=NETWORKS[name].loss)
    pipeline.evaluate([batch])
    assert pipeline.balance
    return pipeline.balance


def main(
    network: Annotated[list[str] | None, typer.Option(help=f"{', '.join(NETWORKS)}.")] = None,
    stages: Annotated[list[int] | None, typer.Option(help="Default: 2 and 4.")] = None,
    repeats: Annotated[int, typer.Option(min=1, help="Runs of each.")] = 3,
    output: Annotated[
        Path | None, typer.Option(help="Folder to write networks.csv and networks.json to.")
    ] = None,
    append: Annotated[
        bool, typer.Option(help="Keep the runs that are in the folder, and add these.")
    ] = False,
) -> None:
    """Time real networks in a pipeline, beside what else the cores of this machine can do."""
    for name in network or []:
        require_choice("network", name, NETWORKS)
    record = measured(0, microbatches=MICROBATCHES)
    load = record["load_average_at_start"]
    before = pd.DataFrame(columns=[*CASE, "repeat", "contestant", "seconds", "load"])
    if output and append and (output / "networks.csv").exists():
        before = pd.read_csv(output / "networks.csv")
    rows: list[dict[str, Any]] = []
    for depth in stages or [2, 4]:
        with crew(depth) as peers, torch.random.fork_rng():
            for name in network or NETWORKS:
                entered = contestants(name, balanced(name, depth), peers)
                same = (before["network"] == name) & (before["stages"] == depth)
                first = 1 + before.loc[same, "repeat"].max() if same.any() else 0
                with tqdm(total=repeats * len(entered), desc=name, unit="run") as bar:
                    for repeat in range(first, first + repeats):
                        for contestant, seconds in entered.items():
                            bar.set_postfix_str(contestant)
                            run = dict(zip([*CASE, "repeat"], (name, depth, repeat), strict=True))
                            run |= {"contestant": contestant, "seconds": seconds(), "load": load}
                            rows.append(run)
                            bar.update()
    runs = pd.concat([before, pd.DataFrame(rows)]) if len(before) else pd.DataFrame(rows)
    print(f"1F1B, {MICROBATCHES} microbatches (measured)")
    show(summarise(runs, MICROBATCHES, record["cores"]))
    conclude("networks", runs, record, output)
    if output:
        write_page(output)


if __name__ == "__main__":
    typer.run(main)
