"""Everything that a machine with GPUs can check of this project; ``make gpu`` runs it.

    python -m experiments.gpu.check                    # all of it
    python -m experiments.gpu.check --device cpu       # a dry run of memory and speed

Three things, in turn; it ends with an error if any of them does not hold:

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
from pathlib import Path
from typing import Annotated

import torch
import typer

from experiments.gpu.memory import LIMIT, memory
from experiments.gpu.network import STAGES
from experiments.gpu.speed import speed
from pipekit.devices import device_count, is_accelerator

REPOSITORY = Path(__file__).parents[2]


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
