"""``pipekit profile``: the costs of each layer of a network."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

import pipekit as pk
from pipekit.cli.common.options import (
    OWN_MODEL,
    PUBLISHED,
    TRAINED,
    File,
    print_table,
    require_suffix,
    save,
)
from pipekit.cli.common.own import OwnModel, own_loss, require_known
from pipekit.references import require_module
from pipekit.units import bytes_text, plural

if TYPE_CHECKING:
    from torch import nn

    from pipekit.trees import Tree


_NETWORKS = f"{TRAINED}, {PUBLISHED}; or {OWN_MODEL}"


def profile(
    model: Annotated[str, typer.Argument(metavar="NAME|module:factory", help=_NETWORKS)],
    rows: Annotated[int | None, typer.Option(min=1)] = None,
    data: str | None = None,
    loss: str | None = None,
    device: str = "cpu",
    repeats: Annotated[int, typer.Option(min=1)] = 10,
    analytic: Annotated[str | None, typer.Option(metavar="DEVICE")] = None,
    dtype: str = "float32",
    quiet: bool = False,
    output: File = None,
) -> None:
    """Print the costs of each layer of a network, measured here or estimated for a named device.

    It measures as in a training by two workers on this machine: with a loss, an optimizer (SGD
    with momentum), and a second busy worker.

    \b
    [b]Examples[/b]
      pipekit profile vgg16 --rows 32 --device cuda --output vgg16.json
      pipekit profile gpt-355M --rows 4 --analytic "V100 16GB" --dtype float16
      pipekit profile torchvision.models:resnet18 --data nets:batches

    Args:
        rows: Rows of the microbatch: by default 32, or those of your example.
        device: Measure on cpu or cuda.
        repeats: Number of measurements, of which the median counts.
        analytic: Estimate, in place of measuring, for 'K80 12GB', 'Titan X 12GB', 'V100 16GB',
            'P40 22GiB' or 'TPU-v2 core 8GB'.
        dtype: float32, float16 or bfloat16.
        output: Write the profile to this .json file.
    """
    require_suffix(output, (".json",))
    require_known(model, f"{TRAINED}, {PUBLISHED}")
    own = OwnModel(model, data) if ":" in model else None
    for reference in filter(None, (data, loss)):
        require_module(reference)
    if not own and (data or loss):
        raise ValueError(f"--data and --loss are for a model of yours: {model} has its own")
    if loss and not data:
        raise ValueError("--loss needs --data, whose first batch has the target")
    import warnings

    from pipekit.choices import require_choice
    from pipekit.clusters import K80, P40, TITAN_X, TPU_V2_CORE, V100

    require_choice("dtype", dtype, ["float32", "float16", "bfloat16"])
    if analytic is not None:
        devices = {known.name: known for known in (K80, TITAN_X, V100, P40, TPU_V2_CORE)}
        require_choice("analytic", analytic, devices)
        network, sample = _make(own or model, rows, "cpu" if own else "meta", dtype)
        made = pk.Profile.analytic(network, sample, devices[analytic])
    else:
        network, sample = _make(own or model, rows, "cpu", dtype)
        judged: dict[str, Any] = {}
        if own and data is not None:
            sample, target = own.first
            judged = {"target": target, "loss": own_loss(loss)}
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            made = pk.profile(network, sample, device, repeats, progress=not quiet, **judged)
        for warning in caught:
            typer.secho(f"warning: {warning.message}", fg="yellow", err=True)
    _print(model, made)
    save(output, made.save)


def _make(
    name: str | OwnModel, rows: int | None, device: str, dtype: str
) -> tuple["nn.Sequential", "Tree"]:
    import torch

    from pipekit.partition.recording.batch import with_rows
    from pipekit.trees import tree_map
    from pipekit.workloads import WORKLOADS

    if isinstance(name, OwnModel):
        network = name.build()
        sample = name.example if rows is None else with_rows(name.example, rows)
    else:
        known = WORKLOADS.get(name) or pk.models.PUBLISHED[name]
        with torch.device(device):
            network, sample = known.build(), known.sample(rows or 32)
    floating = getattr(torch, dtype)
    sample = tree_map(lambda t: t.to(floating) if t.is_floating_point() else t, sample)
    return network.to(floating), sample


def _print(name: str, made: "pk.Profile") -> None:
    columns = ["forward (ms)", "backward (ms)", "out (MB)", "weights (MB)", "saved (MB)"]
    print_table(
        ["layer", *columns],
        [[layer.name, *_cells(layer)] for layer in made.layers],
        [["all", *_cells(made.stage(0, len(made)))]],
        named=True,
        title=f"{name}, {plural(made.rows, 'row')}, {made.provenance['dtype']}",
        caption=_origin(made),
    )
    for skip in made.skips:
        size = bytes_text(skip.bytes)
        typer.echo(f"skip {skip.name!r}: layer {skip.source} to {skip.destination}, {size}")


def _cells(layer: "pk.profiling.LayerProfile") -> list[str]:
    times = [f"{seconds * 1e3:.3f}" for seconds in (layer.forward_s, layer.backward_s)]
    sizes = [layer.output_bytes, layer.parameter_bytes, layer.saved_bytes]
    return times + [f"{size / 1e6:.2f}" for size in sizes]


def _origin(made: "pk.Profile") -> str:
    known = made.provenance
    if known["label"] == "simulated":
        return (
            f"simulated for {known['device']} at {known['efficiency']:.0%} of its peak and "
            f"{known['memory_efficiency']:.0%} of its memory bandwidth"
        )
    where = known["device"]
    if where == "cpu":
        where = f"{plural(known['threads'], 'thread')} of {known['cpu']}"
    return (
        f"measured on {where}, torch {known['torch']}, {plural(known['repeats'], 'repeat')}: "
        f"layers / whole {known['conservation']:.2f}, spread up to {known['spread']:.0%}"
    )
