"""Everything that a machine with GPUs can check of this project; ``make gpu`` runs it.

    python experiments/gpu/check.py                    # all of it
    python experiments/gpu/check.py --device cpu       # a dry run of memory and speed

Three things, in turn; it ends with an error if any of them does not hold:

1. the tests of tests/device on the GPUs: every schedule with every feature, equal to the bit to the
   same training on a GPU that stops for every step of every worker; then a part of them under
   PyTorch's CUDA sanitizer;
2. the peak of every stage's tensors against the prediction, within 5 %;
3. milliseconds a batch of a pipeline of stages that share the GPUs, beside the unsplit model.
"""

import os
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Annotated

import torch
import typer
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from pipekit import Pipeline, Plan, Schedule, measure_memory, models, profile, schedules, simulate
from pipekit.devices import device_count, is_accelerator, synchronize

REPOSITORY = Path(__file__).parents[2]
LIMIT = 0.05
STAGES, MICROBATCHES, BATCHES = 4, 8, 5
METHODS: dict[str, Callable[[int, int, int], Schedule]] = {
    "GPipe": schedules.gpipe,
    "1F1B": schedules.flush,
    "PipeDream-2BW": schedules.two_bw,
}


def tests() -> bool:
    """Run the tests on the GPUs, then some under the sanitizer; return whether all passed."""
    command = [sys.executable, "-m", "pytest", "-q", "tests/device"]
    environment = os.environ | {
        "PIPEKIT_DEVICE": "cuda",
        "CUBLAS_WORKSPACE_CONFIG": ":4096:8",  # else products on several streams are no two alike
    }
    whole = subprocess.run(
        [*command, "-m", "devices or not devices"], cwd=REPOSITORY, env=environment, check=False
    )
    sanitized = environment | {"TORCH_CUDA_SANITIZER": "1"}
    part = subprocess.run(command, cwd=REPOSITORY, env=sanitized, check=False)
    return whole.returncode == part.returncode == 0


def network(width: int, layers: int) -> nn.Sequential:
    """A GPT of so many blocks, cut into stages with as many each."""
    torch.manual_seed(0)
    return models.gpt(layers, width, max(1, width // 64), vocabulary=512, sequence=64)


def batch(rows: int) -> tuple[Tensor, Tensor]:
    tokens = torch.randint(512, (rows, 64))
    return tokens, tokens


def pipeline(model: nn.Sequential, method: str, devices: list[str]) -> Pipeline:
    middle = len(model) // STAGES
    return Pipeline(
        model,
        partial(METHODS[method], STAGES, MICROBATCHES),
        balance=[middle] * (STAGES - 1) + [len(model) - middle * (STAGES - 1)],
        optimizer=partial(torch.optim.SGD, lr=0.01, momentum=0.9),
        loss=models.token_loss,
        devices=devices,
    )


def memory(places: list[str], width: int, rows: int) -> bool:
    """Compare the peaks of all stages with their prediction; return whether all are near it."""
    table = Table(title=f"peak bytes of a stage (MB), measured and simulated; limit {LIMIT:.0%}")
    for column in ("schedule", "stage", "measured", "simulated", "apart", "allocator"):
        table.add_column(column)
    good = True
    model = network(width, 2 * STAGES)
    with warnings.catch_warnings():  # of times, which are not looked at here
        warnings.simplefilter("ignore")
        measured = profile(model, batch(rows)[0], places[0], repeats=2)
    for method, schedule in METHODS.items():
        pipe = pipeline(model, method, places)
        found = measure_memory(pipe.train([batch(rows * MICROBATCHES)] * BATCHES, memory=True))
        plan = Plan.by_hand(pipe.balance or [], rows=rows)
        table_of = schedule(STAGES, MICROBATCHES, BATCHES)
        ours = simulate(table_of, measured, plan, optimizer_states=1).memory
        assert ours is not None
        for stage, (here, there) in enumerate(zip(found.peak_bytes, ours.peak_bytes, strict=True)):
            apart = there / here - 1
            good &= abs(apart) <= LIMIT
            allocated = (found.allocated_bytes or {}).get(stage)
            table.add_row(
                method,
                str(stage),
                f"{here / 1e6:.1f}",
                f"{there / 1e6:.1f}",
                f"{apart:+.1%}",
                f"{allocated / 1e6:.1f}" if allocated else "",
            )
    Console().print(table)
    return good


def unsplit(model: nn.Sequential, device: str, rows: int) -> Callable[[], None]:
    """Return what trains the unsplit model on a batch, a microbatch after the other."""
    model.to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    x, y = (each.to(device) for each in batch(rows * MICROBATCHES))

    def step() -> None:
        optimizer.zero_grad()
        for part, target in zip(x.chunk(MICROBATCHES), y.chunk(MICROBATCHES), strict=True):
            (models.token_loss(model(part), target) / MICROBATCHES).backward()
        optimizer.step()

    return step


def milliseconds(train: Callable[[int], object], device: torch.device) -> float:
    """Return what a batch takes: many less few, so that start and end do not count."""
    found = []
    for _ in range(5):
        took = []
        for batches in (2, 2 + 4 * BATCHES):
            synchronize(device)
            begin = time.perf_counter()
            train(batches)
            synchronize(device)
            took.append(time.perf_counter() - begin)
        found.append((took[1] - took[0]) / (4 * BATCHES) * 1e3)
    return median(found)


def speed(places: list[str], width: int, rows: int) -> None:
    """Print how long a batch takes."""
    table = Table(title=f"measured: milliseconds a batch of {MICROBATCHES} microbatches")
    for column in ("who", "ms", "of the unsplit model's rate"):
        table.add_column(column)
    device, model = torch.device(places[0]), network(width, 2 * STAGES)
    step = unsplit(network(width, 2 * STAGES), places[0], rows)
    alone = milliseconds(lambda batches: [step() for _ in range(batches)], device)
    table.add_row("unsplit, on one device", f"{alone:.2f}", "1.00")
    example = batch(rows * MICROBATCHES)
    for method in METHODS:
        for trace in (False, True):
            pipe = pipeline(model, method, places)
            ours = milliseconds(
                lambda n, p=pipe, t=trace: p.train([example] * n, trace=t),  # type: ignore[misc]
                device,
            )
            traced = ", traced" if trace else ""
            table.add_row(
                f"{method}{traced}, {STAGES} stages", f"{ours:.2f}", f"{alone / ours:.2f}"
            )
    Console().print(table)


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
