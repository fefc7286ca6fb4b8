"""Options that several commands share, and how they print tables and write pictures."""

import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

import pipekit as pk
from pipekit.names import CLUSTERS, TABLES

TRAINED = "convnet, mlp, gpt"
"""The networks that come with data: their own list would load what takes seconds."""
PUBLISHED = (
    "alexnet, vgg16, resnet50, resnet101, inception-v3, s2vt, gpt-355M, gpt-1.3B, gpt-2.2B, "
    "gpt-3.8B, bert-large, unet-5-64, unet-6-72, unet-11-128, unet-24-128, unet-24-160, "
    "unet-48-160, amoebanet-d-18-208, amoebanet-d-18-256, amoebanet-d-18-416, amoebanet-d-18-544, "
    "amoebanet-d-36-544, amoebanet-d-72-512"
)
"""The papers' networks, likewise."""
TABLE = (
    f"{TABLES}; a file with a picture or a CSV table; or package.module:function of yours, which "
    "takes (stages, microbatches)."
)
OWN_MODEL = (
    "a function of yours that returns a torch.nn.Module of any kind, or (module, example batch)."
)
File = Annotated[Path | None, typer.Option(dir_okay=False)]
Folder = Annotated[Path | None, typer.Option(metavar="FOLDER", file_okay=False)]
_LOOPED = ", ".join(name for name, method in TABLES.items() if method.stages_a_worker > 1)
SHARED: dict[str, Any] = {
    "profile": typer.Argument(metavar="PROFILE", help="A file of pipekit profile."),
    "plan": typer.Option(
        dir_okay=False, help="A file of pipekit plan; by default stages of equal time."
    ),
    "cluster": typer.Option(metavar="NAME", help=f"{CLUSTERS}: this machine, measured."),
    "workers": typer.Option(min=1, help="Number of workers; by default the paper's."),
    "bandwidth": typer.Option(
        help="Bytes/s of each worker's link, say 1.25e9; with --workers, in place of --cluster."
    ),
    "memory": typer.Option(help="Bytes of each worker, with --bandwidth; by default no limit."),
    "microbatches": typer.Option(
        min=1, help="Number in a batch; by default the plan's, if it cuts batches, or 8."
    ),
    "host_bandwidth": typer.Option(
        min=1, help="Bytes/s between a worker and its host, for activations that are offloaded."
    ),
    "optimizer_states": typer.Option(
        min=0,
        help="Tensors of a parameter's size that the optimizer keeps for each: 0 for plain SGD, 1 "
        "with momentum, 2 for Adam.",
    ),
    "stages": typer.Option(
        help=f"Number of stages, a worker each; two share a worker in {_LOOPED}."
    ),
    "replicas": typer.Option(
        metavar="R-R-...",
        help="In place of --stages, each stage's number of workers: 2-1-1; 8 is data parallelism.",
    ),
    "mitigation": typer.Option(
        metavar="NAME[:KEY=VALUE,...]",
        help="Mitigation of stale weights: spectrain, pipeoptim, pipemare:anneal=500 (with "
        "pipedream-no-stashing, paci), gap-aware, ahead (pipedream, 2bw), or error-feedback.",
    ),
    "data": typer.Option(
        metavar="module:batches",
        help="For a model of yours: pairs (input, target), whole batches; an iterable, or a "
        "function that returns one. An input may be a dict of the model's arguments.",
    ),
    "loss": typer.Option(
        metavar="module:function",
        help="For a model of yours: loss(output, target). By default cross entropy for whole "
        "numbers as targets, else mean squared error.",
    ),
    "quiet": typer.Option("--quiet", help="Show no progress bar."),
}
"""What commands have in common, by the name of the argument, unless a command explains its own."""


def chosen_cluster(
    name: str | None, workers: int | None, bandwidth: float | None, memory: float | None
) -> "pk.clusters.Cluster":
    """Return the cluster that the options describe."""
    if name is not None:
        if bandwidth is not None or memory is not None:
            raise ValueError("--bandwidth and --memory describe a cluster in place of --cluster")
        return pk.clusters.named(name, workers)
    if bandwidth is None or workers is None:
        raise ValueError("name a --cluster, or describe one by --workers and --bandwidth")
    return pk.clusters.flat(workers, bandwidth, memory)


def chosen_links(
    name: str | None, workers: int | None, bandwidth: float | None, memory: float | None = None
) -> "pk.clusters.Cluster | None":
    """Return the cluster likewise, or None for links that cost nothing."""
    is_free = name is None and bandwidth is None
    return None if is_free else chosen_cluster(name, workers, bandwidth, memory)


def chosen_plan(costs: "pk.Profile", plan: Path | None, stages: int) -> "pk.Plan":
    """Return the plan of a file, or so many stages of equal time."""
    if plan is not None:
        return pk.Plan.load(plan)
    return pk.plan(costs, pk.clusters.flat(stages, math.inf), "balance")


def chosen_microbatches(asked: int | None, plan: "pk.Plan") -> int:
    """Return the number in a batch: as asked, the plan's if it cuts batches, or 8."""
    return asked or (plan.microbatches if plan.microbatches > 1 else 8)


def print_table(
    headings: Sequence[str],
    rows: Iterable[Sequence[str]],
    last: Sequence[Sequence[str]] = (),
    *,
    named: bool = False,
    **about: Any,
) -> None:
    """Print a table of numbers, ``named`` in its first column, with ``last`` rows below a line."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from pipekit.reading import printable

    made = Table(**about)
    for number, heading in enumerate(headings):
        is_name = named and not number
        made.add_column(heading, justify="left" if is_name else "right", no_wrap=is_name)
    for section in (rows, last):
        for row in section:
            made.add_row(*(escape(printable(cell)) for cell in row))
        made.add_section()
    Console().print(made)


def require_suffix(output: Path | None, suffixes: Sequence[str], option: str = "--output") -> None:
    """Raise ValueError unless a file to write, if there is one, has one of the suffixes."""
    if output is not None and not output.name.lstrip(".").endswith(tuple(suffixes)):
        raise ValueError(f"{option} must end in {', '.join(suffixes)}, not {output.name!r}")


def save(path: Path | None, write: Callable[[Path], object]) -> None:
    """Write a file, if one is wanted, and say so; its folder is made if it is missing."""
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        write(path)
        typer.echo(f"wrote {path}")


def save_text(path: Path, text: str) -> None:
    """Write a text likewise."""
    save(path, lambda file: file.write_text(text, encoding="utf-8"))


def save_timelines(traces: Sequence["pk.Trace"], output: Path, *, versions: bool = False) -> None:
    """Draw traces into a live .html, or a .svg with the .csv of their events, and say so."""
    if output.suffix == ".html":
        from pipekit.explore.browser.standalone import page

        save_text(output, page(" and ".join(trace.name for trace in traces), traces))
        return
    import pandas as pd

    figure = pk.plots.compare(*traces, versions=versions)
    events = pd.concat([trace.frame.assign(schedule=trace.name) for trace in traces])
    for path in pk.plots.save(figure, output.with_suffix(""), events).values():
        typer.echo(f"wrote {path}")
