"""``pipekit profile``: what each layer of a network costs."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pipekit.cli.options import Quiet

if TYPE_CHECKING:
    from torch import nn

    from pipekit.profiling import LayerProfile, Profile
    from pipekit.trees import Tree


def profile(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="convnet, mlp, gpt, alexnet, vgg16, resnet50, resnet101, inception-v3, s2vt, "
            "gpt-355M, gpt-1.3B, gpt-2.2B, gpt-3.8B, bert-large, unet-5-64, unet-6-72, "
            "unet-11-128, unet-24-128, unet-24-160, unet-48-160, amoebanet-d-18-208, "
            "amoebanet-d-18-256, amoebanet-d-18-416, amoebanet-d-18-544, amoebanet-d-36-544 or "
            "amoebanet-d-72-512.",
            show_default=False,
        ),
    ],
    rows: Annotated[int, typer.Option(min=1, help="Of the microbatch.")] = 32,
    device: Annotated[str, typer.Option(help="Measure on cpu or cuda.")] = "cpu",
    repeats: Annotated[int, typer.Option(min=1, help="Medians are over so many.")] = 10,
    analytic: Annotated[
        str | None,
        typer.Option(
            metavar="DEVICE",
            help="Estimate, in place of measuring, for 'K80 12GB', 'Titan X 12GB', 'V100 16GB', "
            "'P40 22GiB' or 'TPU-v2 core 8GB'.",
            show_default=False,
        ),
    ] = None,
    dtype: Annotated[str, typer.Option(help="float32, float16 or bfloat16.")] = "float32",
    quiet: Quiet = False,
    output: Annotated[
        Path | None,
        typer.Option(
            dir_okay=False, help="Write the profile to this .json file.", show_default=False
        ),
    ] = None,
) -> None:
    """Print what each layer of a network costs: measured here, or estimated for a named device.

    \b
    [b]Examples[/b]
      pipekit profile convnet
      pipekit profile vgg16 --rows 32 --device cuda --output vgg16.json
      pipekit profile gpt-355M --rows 4 --analytic "V100 16GB" --dtype float16
    """
    import warnings

    import pipekit
    from pipekit.choices import require_choice
    from pipekit.clusters import K80, P40, TITAN_X, TPU_V2_CORE, V100
    from pipekit.models import PUBLISHED
    from pipekit.workloads import WORKLOADS

    require_choice("model", model, [*WORKLOADS, *PUBLISHED])
    require_choice("dtype", dtype, ["float32", "float16", "bfloat16"])
    if analytic is not None:
        devices = {known.name: known for known in (K80, TITAN_X, V100, P40, TPU_V2_CORE)}
        require_choice("analytic", analytic, devices)
        network, sample = _make(model, rows, "meta", dtype)
        made = pipekit.Profile.analytic(network, sample, devices[analytic])
    else:
        network, sample = _make(model, rows, "cpu", dtype)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            made = pipekit.profile(network, sample, device, repeats, progress=not quiet)
        for warning in caught:
            typer.secho(f"warning: {warning.message}", fg="yellow", err=True)
    _print(model, made)
    if output is not None:
        made.save(output)
        typer.echo(f"wrote {output}")


def _make(name: str, rows: int, device: str, dtype: str) -> tuple["nn.Sequential", "Tree"]:
    """Return a network and an input of so many rows."""
    import torch

    from pipekit.models import PUBLISHED
    from pipekit.trees import tree_map
    from pipekit.workloads import WORKLOADS

    known = WORKLOADS.get(name) or PUBLISHED[name]
    with torch.device(device):
        network, sample = known.build(), known.sample(rows)
    floating = getattr(torch, dtype)
    sample = tree_map(lambda t: t.to(floating) if t.is_floating_point() else t, sample)
    return network.to(floating), sample


def _print(name: str, made: "Profile") -> None:
    from rich.console import Console
    from rich.table import Table

    known = made.provenance
    table = Table(title=f"{name}, {made.rows} rows, {known['dtype']}", caption=_origin(made))
    table.add_column("layer")
    for column in ("forward (ms)", "backward (ms)", "out (MB)", "parameters (MB)", "saved (MB)"):
        table.add_column(column, justify="right")
    whole = made.stage(0, len(made))
    for layer in made.layers:
        table.add_row(layer.name, *_cells(layer), end_section=layer is made.layers[-1])
    table.add_row("all", *_cells(whole))
    Console().print(table)
    for skip in made.skips:
        size = f"{skip.bytes / 1e6:.2f} MB"
        typer.echo(f"skip {skip.name!r}: layer {skip.source} to {skip.destination}, {size}")


def _cells(layer: "LayerProfile") -> list[str]:
    times = [f"{seconds * 1e3:.3f}" for seconds in (layer.forward_s, layer.backward_s)]
    sizes = [layer.output_bytes, layer.parameter_bytes, layer.saved_bytes]
    return times + [f"{size / 1e6:.2f}" for size in sizes]


def _origin(made: "Profile") -> str:
    """Return what kind of numbers these are, and whose."""
    known = made.provenance
    if known["label"] == "simulated":
        return (
            f"simulated for {known['device']} at {known['efficiency']:.0%} of its peak and "
            f"{known['memory_efficiency']:.0%} of its memory bandwidth"
        )
    where = known["device"]
    if where == "cpu":
        where = f"{known['threads']} threads of {known['cpu']}"
    return (
        f"measured on {where}, torch {known['torch']}, {known['repeats']} repeats: "
        f"layers / whole {known['conservation']:.2f}, spread up to {known['spread']:.0%}"
    )
