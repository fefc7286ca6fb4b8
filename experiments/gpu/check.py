"""Everything that a machine with GPUs can check of this project; ``make gpu`` runs it.

    python -m experiments.gpu.check                    # all of it
    python -m experiments.gpu.check --device cpu       # a dry run of the speed

First the tests of tests/device on the GPUs, a part of them under PyTorch's CUDA sanitizer (the exit
code is 1 if one fails); then the speed of a small GPT in four stages, beside the unsplit model and
torch.distributed.pipelining.  Torch has a process for each device, since NCCL gives no two the same
GPU: with fewer devices than stages each has several.
"""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import pandas as pd
import torch
import torch.distributed as dist
import typer
from torch import Tensor, nn
from tqdm import tqdm

from experiments.benchmarks.harness import (
    ROOT,
    conclude,
    crew,
    device_of,
    measured,
    plain_step,
    show,
)
from pipekit import Execution, Pipeline, Schedule, Watch, models, schedules, torch_runtime
from pipekit.devices import device_count, is_accelerator, synchronize

UNSPLIT = "unsplit, on one device"
STAGES, MICROBATCHES, BATCHES, ROUNDS = 4, 8, 3, 5
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
    middle = len(model) // STAGES
    return [middle] * (STAGES - 1) + [len(model) - middle * (STAGES - 1)]


def sgd(parameters: list[nn.Parameter]) -> torch.optim.SGD:
    return torch.optim.SGD(parameters, lr=0.01, momentum=0.9)


def unsplit(model: nn.Sequential, device: str, rows: int) -> Callable[[], None]:
    """Return a step that trains the unsplit model on a batch, a microbatch after the other."""
    there = [each.to(device) for each in batch(rows * MICROBATCHES)]
    return plain_step(model.to(device), there, models.token_loss, MICROBATCHES, sgd)


def tables(stages: int, microbatches: int, ranks: int) -> dict[str, Schedule]:
    """Return the schedules that torch's runtime has for so many stages on so many ranks."""
    made: dict[str, Callable[..., Schedule]] = {"GPipe": schedules.gpipe, "1F1B": schedules.flush}
    how = {}
    if ranks < stages:
        how = {"workers": ranks}
        made = {"looped breadth-first": schedules.looped_bfs}
        made["interleaved 1F1B"] = schedules.interleaved
    return {name: method(stages, microbatches, **how).take(1) for name, method in made.items()}


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


def tests() -> bool:
    """Run the tests on the GPUs, then some under the sanitizer; return whether all passed."""
    others = "tests/profiling/test_measured.py", "tests/clusters/test_cluster.py"  # of GPUs, too
    command = [sys.executable, "-m", "pytest", "-q", "tests/device"]
    environment = os.environ | {
        "PIPEKIT_DEVICE": "cuda",
        "CUBLAS_WORKSPACE_CONFIG": ":4096:8",  # else products on several streams are no two alike
    }
    sanitized = environment | {"TORCH_CUDA_SANITIZER": "1"}
    runs = [
        subprocess.run([*command, *options], cwd=ROOT, env=settings, check=False).returncode
        for settings, options in (
            (environment, [*others, "-m", "devices or not devices"]),
            (sanitized, ()),
        )
    ]
    return not any(runs)


def pipeline(width: int, method: str, devices: list[str]) -> Pipeline:
    model = network(width)
    return Pipeline(
        model,
        METHODS[method],
        balance=balance(model),
        optimizer=sgd,
        loss=models.token_loss,
        execution=Execution(devices=devices),
    )


def milliseconds(train: Callable[[int], object], device: torch.device) -> float:
    """Return the time of a batch: many less few, so that start-up does not count."""
    took = []
    for batches in (2, 2 + 2 * BATCHES):
        synchronize(device)
        start = time.perf_counter()
        train(batches)
        synchronize(device)
        took.append(time.perf_counter() - start)
    return (took[1] - took[0]) / (2 * BATCHES) * 1e3


def repeated(step: Callable[[], object]) -> Callable[[int], object]:
    return lambda batches: [step() for _ in range(batches)]


def of_torch(rank: int, kind: str, width: int, rows: int, name: str, ranks: int) -> float:
    """Return the milliseconds of a batch by one of torch's schedules, on this rank."""
    device = device_of(rank, kind)
    return milliseconds(repeated(trainer(network(width), rows, name, ranks, device)), device)


def speed(places: list[str], width: int, rows: int) -> pd.DataFrame:
    """Return the milliseconds of a batch of ``rows`` a microbatch, by contestant.

    All are timed in turn; ``rate`` is the median of their ratios to the unsplit model, by round.
    """
    device = torch.device(places[0])
    trains = {UNSPLIT: repeated(unsplit(network(width), places[0], rows))}
    example = batch(rows * MICROBATCHES)
    for method in METHODS:
        pipe = pipeline(width, method, places)
        for trace in (False, True):
            trains[f"{method}{', traced' if trace else ''}, {STAGES} stages"] = (
                lambda n, p=pipe, t=trace: p.train([example] * n, watch=Watch(trace=t))  # type: ignore[misc]
            )
    ranks = ranks_on(STAGES, len(set(places)))
    rounds = []
    with crew(ranks, device.type) as processes:
        for _ in tqdm(range(ROUNDS), f"rounds at width {width}"):
            times = {who: milliseconds(train, device) for who, train in trains.items()}
            for name in tables(STAGES, MICROBATCHES, ranks):
                took = processes.call(of_torch, device.type, width, rows, name, ranks)
                who = f"torch.distributed.pipelining, {name}, {STAGES} stages on {ranks}"
                times[who] = max(took)
            rounds.append(times)
    found = pd.DataFrame(rounds)
    rate = found.rdiv(found[UNSPLIT], axis="index")
    table = pd.DataFrame({"width": width, "ms": found.median(), "rate": rate.median()})
    return table.rename_axis("who").reset_index()


def main(
    device: Annotated[str, typer.Option(help="cuda, or cpu for a dry run.")] = "cuda",
    width: Annotated[list[int], typer.Option(help="Of the GPT; may be repeated.")] = [512, 2048],  # noqa: B006
    rows: Annotated[int, typer.Option(help="Sequences of 64 tokens in a microbatch.")] = 8,
    output: Annotated[
        Path | None, typer.Option(help="Folder for speed.csv and its record.")
    ] = None,
) -> None:
    count = 1 if device == "cpu" else device_count(device)
    if not count:
        typer.echo(
            f"no GPU here: PyTorch {torch.__version__} finds no {device} device.  Nothing was "
            f"checked; 'make devices' checks what a simulated accelerator can tell.",
            err=True,
        )
        raise typer.Exit(1)
    places = [device if device == "cpu" else f"{device}:{i % count}" for i in range(STAGES)]
    passed = tests() if is_accelerator(torch.device(places[0])) else True
    record = measured(rows=rows, microbatches=MICROBATCHES, rounds=ROUNDS, devices=places)
    table = pd.concat([speed(places, each, rows) for each in width], ignore_index=True)
    print(f"measured: milliseconds a batch of {MICROBATCHES} microbatches")
    show(table, 3)
    conclude("speed", table, record, output)
    if not passed:
        typer.echo("tests failed on the GPU: see above", err=True)
    raise typer.Exit(0 if passed else 1)


if __name__ == "__main__":
    typer.run(main)
