"""Everything that a machine with GPUs can check of this project; ``make gpu`` runs it.

    python -m experiments.gpu.check                    # all of it
    python -m experiments.gpu.check --device cpu       # a dry run of the speed

Two things, in turn; the exit code is 1 if a test fails:

1. the tests of tests/device on the GPUs: every schedule with every feature, equal to the bit to the
   same training on a GPU that stops for every step of every worker, and the peak of each stage's
   tensors against its prediction; then a part of them under PyTorch's CUDA sanitizer;
2. milliseconds a batch of a pipeline of stages that share the GPUs, beside the unsplit model and
   beside torch.distributed.pipelining on the same GPUs (peers.py says how).
"""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Annotated

import pandas as pd
import torch
import typer

from experiments.benchmarks.harness import crew, device_of, show
from experiments.gpu import peers
from experiments.gpu.peers import BATCHES, METHODS, MICROBATCHES, STAGES, batch, network
from pipekit import Execution, Pipeline, Watch, models
from pipekit.devices import device_count, is_accelerator, synchronize

UNSPLIT = "unsplit, on one device"


def tests() -> bool:
    """Run the tests on the GPUs, then some under the sanitizer; return whether all passed."""
    command = [sys.executable, "-m", "pytest", "-q", "tests/device"]
    environment = os.environ | {
        "PIPEKIT_DEVICE": "cuda",
        "CUBLAS_WORKSPACE_CONFIG": ":4096:8",  # else products on several streams are no two alike
    }
    sanitized = environment | {"TORCH_CUDA_SANITIZER": "1"}
    root = Path(__file__).parents[2]
    runs = [
        subprocess.run([*command, *options], cwd=root, env=settings, check=False).returncode
        for settings, options in ((environment, ["-m", "devices or not devices"]), (sanitized, []))
    ]
    return not any(runs)


def pipeline(width: int, method: str, devices: list[str]) -> Pipeline:
    model = network(width)
    return Pipeline(
        model,
        METHODS[method],
        balance=peers.balance(model),
        optimizer=peers.sgd,
        loss=models.token_loss,
        execution=Execution(devices=devices),
    )


def milliseconds(train: Callable[[int], object], device: torch.device) -> float:
    """Return the time of a batch: many less few, so that start-up does not count."""
    found = []
    for _ in range(5):
        took = []
        for batches in (2, 2 + 4 * BATCHES):
            synchronize(device)
            start = time.perf_counter()
            train(batches)
            synchronize(device)
            took.append(time.perf_counter() - start)
        found.append((took[1] - took[0]) / (4 * BATCHES) * 1e3)
    return median(found)


def of_torch(rank: int, kind: str, width: int, rows: int, name: str, ranks: int) -> float:
    """Return the milliseconds of a batch by one of torch's schedules, on this rank."""
    device = device_of(rank, kind)
    step = peers.trainer(network(width), rows, name, ranks, device)
    return milliseconds(lambda batches: [step() for _ in range(batches)], device)


def speed(places: list[str], width: int, rows: int) -> dict[str, float]:
    """Print and return the milliseconds of a batch of ``rows`` a microbatch, by contestant."""
    device = torch.device(places[0])
    step = peers.unsplit(network(width), places[0], rows)
    found = {UNSPLIT: milliseconds(lambda batches: [step() for _ in range(batches)], device)}
    example = batch(rows * MICROBATCHES)
    for method in METHODS:
        for trace in (False, True):
            pipe = pipeline(width, method, places)
            found[f"{method}{', traced' if trace else ''}, {STAGES} stages"] = milliseconds(
                lambda n, p=pipe, t=trace: p.train([example] * n, watch=Watch(trace=t)),  # type: ignore[misc]
                device,
            )
    ranks = peers.ranks_on(STAGES, len(set(places)))
    with crew(ranks, device.type) as processes:
        for name in peers.tables(STAGES, MICROBATCHES, ranks):
            took = processes.call(of_torch, device.type, width, rows, name, ranks)
            found[f"torch.distributed.pipelining, {name}, {STAGES} stages on {ranks}"] = max(took)
    table = pd.DataFrame(found.items(), columns=["who", "ms"])
    print(f"measured: milliseconds a batch of {MICROBATCHES} microbatches")
    show(table.assign(rate=found[UNSPLIT] / table["ms"]), 3)
    return found


def main(
    device: Annotated[str, typer.Option(help="cuda, or cpu for a dry run.")] = "cuda",
    width: int = 512,
    rows: int = 8,
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
    speed(places, width, rows)
    if not passed:
        typer.echo("tests failed on the GPU: see above", err=True)
    raise typer.Exit(0 if passed else 1)


if __name__ == "__main__":
    typer.run(main)
