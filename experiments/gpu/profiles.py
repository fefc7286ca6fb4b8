"""Profiles of the papers' networks on the GPU at hand, at the papers' batch sizes.

    python -m experiments.gpu.profiles                                     # all, fp32 and bf16
    python -m experiments.gpu.profiles --models vgg16 --dtypes float32
    python -m experiments.gpu.profiles --device cpu --models alexnet --rows 2 --repeats 1

Each is written to data/profiles/<model>-<dtype>-<gpu>.json.  Two things are checked, and said where
they do not hold: the layers' times add up to the undivided model's within 10 %, and no layer that
takes 1 % of the time has an interquartile range above 10 % of its median.

Rows of a minibatch: 32 for VGG16 and Inception-v3, 80 for S2VT (PipeDream section 5.1, per
machine).  PipeDream prints none for AlexNet and ResNet-50, which get 32 like its other image
networks, as does ResNet-101, which it does not use; PipeDream-2BW prints none for its 355M GPT
and its BERT, which get microbatches of 8 sequences of 512 tokens.
"""

import re
import warnings
from pathlib import Path
from typing import Annotated

import pandas as pd
import torch
import typer

from experiments.benchmarks.harness import show
from pipekit import Profile, profile
from pipekit.choices import require_choice
from pipekit.devices import device_count, is_accelerator, name_of
from pipekit.models import PUBLISHED
from pipekit.trees import tree_map

ROWS = {
    "vgg16": 32,
    "alexnet": 32,
    "resnet50": 32,
    "resnet101": 32,
    "inception-v3": 32,
    "s2vt": 80,
    "gpt-355M": 8,
    "bert-large": 8,
}
DTYPES = ["float32", "bfloat16"]
LIMIT = 0.1
REPOSITORY = Path(__file__).parents[2]


def measure(model: str, dtype: torch.dtype, rows: int, device: str, repeats: int) -> Profile:
    torch.manual_seed(0)
    network = PUBLISHED[model].build(device=device).to(dtype)
    sample = tree_map(
        lambda t: t.to(dtype) if t.is_floating_point() else t, PUBLISHED[model].sample(rows)
    )
    with warnings.catch_warnings():  # what it warns of stands in our table
        warnings.simplefilter("ignore")
        return profile(network, sample, device, repeats, tolerance=LIMIT, progress=True)


def file_name(model: str, dtype: str, device: str) -> str:
    here = torch.device(device)
    gpu = name_of(here) if is_accelerator(here) else device
    return f"{model}-{dtype}-{re.sub('[^a-z0-9]+', '-', gpu.lower())}.json"


def main(
    models: Annotated[list[str] | None, typer.Option(help="May stand several times.")] = None,
    dtypes: Annotated[list[str] | None, typer.Option(help="May stand several times.")] = None,
    rows: Annotated[int | None, typer.Option(help="In place of the papers'.")] = None,
    repeats: int = 20,
    device: Annotated[str, typer.Option(help="cuda, or cpu for a dry run.")] = "cuda",
    output: Path = REPOSITORY / "data" / "profiles",
) -> None:
    if device != "cpu" and not device_count(device):
        typer.echo("no GPU here: --device cpu --models alexnet --rows 2 is a dry run", err=True)
        raise typer.Exit(1)
    for model in models or []:
        require_choice("models", model, ROWS)
    for dtype in dtypes or []:
        require_choice("dtypes", dtype, DTYPES)
    rows_made: list[dict[str, object]] = []
    for model in models or ROWS:
        for dtype in dtypes or DTYPES:
            made = measure(model, getattr(torch, dtype), rows or ROWS[model], device, repeats)
            path = output / file_name(model, dtype, device)
            made.save(path)
            typer.echo(f"wrote {path}")
            known = made.provenance
            holds = abs(known["conservation"] - 1) <= LIMIT and known["spread"] <= LIMIT
            about = {"model": model, "dtype": dtype, "rows": made.rows}
            about |= {"step (ms)": known["step_s"] * 1e3, "layers / whole": known["conservation"]}
            about |= {"spread": known["spread"], "of": known["spread_layer"]}
            rows_made.append(about | {"holds": "yes" if holds else "NO"})
            if device != "cpu":
                torch.accelerator.empty_cache()
    print("measured")
    show(pd.DataFrame(rows_made))


if __name__ == "__main__":
    typer.run(main)
