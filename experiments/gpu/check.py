"""Everything that a machine with GPUs can check of this project; ``make gpu`` runs it.

    python -m experiments.gpu.check                    # all of it
    python -m experiments.gpu.check --device cpu       # a dry run of memory and speed

Three things, in turn; the exit code is 1 if any of them does not hold:

1. the tests of tests/device on the GPUs: every schedule with every feature, equal to the bit to the
   same training on a GPU that stops for every step of every worker; then a part of them under
   PyTorch's CUDA sanitizer;
2. the peak of every stage's tensors against the prediction, within 5 %;
3. milliseconds a batch of a pipeline of stages that share the GPUs, beside the unsplit model and
   beside torch.distributed.pipelining on the same GPUs (peers.py says how).
"""

import os
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Annotated

import pandas as pd
import torch
import typer

from experiments.benchmarks.harness import show
from experiments.gpu import peers
from experiments.gpu.peers import BATCHES, METHODS, MICROBATCHES, STAGES, batch, network
from pipekit import Execution, Pipeline, Plan, Watch, measure_memory, models, profile, simulate
from pipekit.devices import device_count, is_accelerator, synchronize

LIMIT = 0.05
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


def memory(places: list[str], width: int, rows: int) -> bool:
    """Compare the peaks of all stages with their prediction; return whether all are near it."""
    with warnings.catch_warnings():  # of times, which are not looked at here
        warnings.simplefilter("ignore")
        measured = profile(network(width), batch(rows)[0], places[0], repeats=2)
    found = []
    for method, schedule in METHODS.items():
        pipe = pipeline(width, method, places)
        batches = [batch(rows * MICROBATCHES)] * BATCHES
        here = measure_memory(pipe.train(batches, watch=Watch(memory=True)))
        plan = Plan.by_hand(pipe.balance or [], rows=rows)
        there = simulate(schedule.take(BATCHES), measured, plan, optimizer_states=1).memory
        assert there is not None
        allocated = here.allocated_bytes or {}
        for stage, peaks in enumerate(zip(here.peak_bytes, there.peak_bytes, strict=True)):
            own = (method, stage, *(peak / 1e6 for peak in peaks), peaks[1] / peaks[0] - 1)
            found.append((*own, allocated.get(stage, float("nan")) / 1e6))
    columns = ["schedule", "stage", "measured", "simulated", "apart", "allocator"]
    table = pd.DataFrame(found, columns=columns)
    print(f"peak bytes of a stage (MB), measured and simulated; limit {LIMIT:.0%}")
    show(table, 3)
    return bool((table["apart"].abs() <= LIMIT).all())


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


def of_torch(device: torch.device, width: int, rows: int, name: str, ranks: int) -> float:
    """Return the milliseconds of a batch by one of torch's schedules, on this rank."""
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
    for name in peers.tables(STAGES, MICROBATCHES, ranks):
        took = peers.on_all(ranks, device.type, of_torch, width, rows, name, ranks)
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
    near = memory(places, width, rows)
    speed(places, width, rows)
    if not passed:
        typer.echo("tests failed on the GPU: see above", err=True)
    if not near:
        typer.echo(f"a peak is more than {LIMIT:.0%} from its prediction", err=True)
    raise typer.Exit(0 if passed and near else 1)


if __name__ == "__main__":
    typer.run(main)
