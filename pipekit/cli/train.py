"""``pipekit train``: a quick training on real images, to see a method at work."""

from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pipekit.cli.options import Quiet, Replicas

if TYPE_CHECKING:
    from torch import Tensor

    from pipekit.engine import Run
    from pipekit.traces import Trace

DRAWN_BATCHES = 8
"""More make bars too narrow to tell apart."""


class Autocast(StrEnum):
    """What forwards compute in where that is safe."""

    BF16 = "bf16"
    FP16 = "fp16"


class Transport(StrEnum):
    """How the workers run."""

    THREADS = "threads"
    DISTRIBUTED = "distributed"


def train(
    model: Annotated[str, typer.Option(help="convnet or mlp.")] = "convnet",
    method: Annotated[
        str,
        typer.Option(
            help="gpipe, flush, 2bw, model-parallel, pipedream, pipedream-vertical-sync or "
            "pipedream-no-stashing."
        ),
    ] = "flush",
    stages: Annotated[int, typer.Option(help="One worker each.")] = 4,
    replicas: Replicas = None,
    transport: Annotated[
        Transport, typer.Option(help="A thread a worker, or a process.")
    ] = Transport.THREADS,
    epochs: Annotated[int, typer.Option(min=1)] = 1,
    batch_rows: Annotated[int, typer.Option(help="Images in each batch.")] = 64,
    microbatches: Annotated[
        int,
        typer.Option(help="In each batch; methods that update every minibatch do not split it."),
    ] = 4,
    lr: Annotated[float, typer.Option(min=0, help="Learning rate of Adam.")] = 0.002,
    autocast: Annotated[
        Autocast | None,
        typer.Option(help="Mixed precision, with weights in float32.", show_default=False),
    ] = None,
    loss_scale: Annotated[
        str | None,
        typer.Option(
            metavar="NUMBER|dynamic",
            help="Multiply losses, and skip updates whose gradient is not finite.",
            show_default=False,
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Of weights, shuffling and dropout.")] = 0,
    checkpoints: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            file_okay=False,
            help="Write checkpoints here, at the end of each epoch at least.",
            show_default=False,
        ),
    ] = None,
    every: Annotated[
        int | None,
        typer.Option(min=1, help="Batches from one checkpoint to the next.", show_default=False),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on from the newest checkpoint, if there is one.")
    ] = False,
    quiet: Quiet = False,
    output: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            file_okay=False,
            help="Write the timeline (SVG, CSV), the last epoch's events (CSV, and for Perfetto) "
            "and the provenance here.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Train a small network on 4,000 MNIST images, and test it on 1,000 others.

    \b
    [b]Examples[/b]
      pipekit train
      pipekit train --method pipedream --stages 2 --epochs 3
      pipekit train --method 2bw --autocast fp16 --loss-scale dynamic
      pipekit train --method pipedream --replicas 2-1
      pipekit cluster --workers 3 --link 1gbit -- pipekit train \\
        --method pipedream --replicas 2-1 --transport distributed
      pipekit train --model mlp --method 2bw --transport distributed --output mine
      pipekit train --epochs 3 --checkpoints saved --every 20 --resume
      torchrun --nproc-per-node 2 --max-restarts 3 --no-python pipekit train --stages 2 \\
        --transport distributed --checkpoints saved --every 20 --resume
    """
    import torch

    import pipekit
    from pipekit import datasets, models
    from pipekit.engine import torchrun
    from pipekit.engine.arguments import require_choice
    from pipekit.methods import METHODS, parse_replicas

    if resume and checkpoints is None:
        raise ValueError("--resume needs the folder of the checkpoints: name it, --checkpoints")
    require_choice("model", model, models.NAMED)
    require_choice("method", method, METHODS)
    split = stages if replicas is None else parse_replicas(replicas)
    shown = not torchrun.launched() or torchrun.rank() == 0
    torch.manual_seed(seed)
    pipeline = pipekit.Pipeline(
        models.NAMED[model](),
        lambda batches: METHODS[method](split, microbatches, batches),
        optimizer=partial(torch.optim.Adam, lr=lr),
        loss=torch.nn.CrossEntropyLoss(),
        transport=transport.value,
        autocast={None: None, "bf16": torch.bfloat16, "fp16": torch.float16}[autocast],
        loss_scale=_number(loss_scale),
        seed=seed,
    )
    data = datasets.mnist()
    runs, accuracies = [], []
    begin = pipeline.resume(checkpoints) if resume and checkpoints else 0
    if begin >= epochs:
        raise ValueError(f"{checkpoints} is of epoch {begin + 1}: name at least as many --epochs")
    for epoch in range(begin, epochs):
        runs.append(
            pipeline.train(
                data.batches(batch_rows, seed, epoch),
                progress=shown and not quiet,
                checkpoints=checkpoints,
                every=every,
            )
        )
        accuracies.append(pipeline.evaluate(data.test_batches(batch_rows), metric=_accuracy))
    if shown:
        _print(runs, accuracies, begin + 1)
    if shown and output is not None and not runs[-1].trace.frame.empty:
        for path in _write(runs[-1], output):
            typer.echo(f"wrote {path}")


def _number(text: str | None) -> float | str | None:
    """Return the number that a text is, or the text."""
    try:
        return text if text is None else float(text)
    except ValueError:
        return text


def _accuracy(logits: "Tensor", classes: "Tensor") -> float:
    return (logits.argmax(1) == classes).float().mean().item()


def _print(runs: list["Run"], accuracies: list[float], first: int) -> None:
    from rich.console import Console
    from rich.table import Table

    last = runs[-1]
    machine = last.provenance
    table = Table(
        title=f"{last.schedule.name}, {last.schedule.stages} stages",
        caption=f"measured on {machine['cores']} cores of {machine['cpu']}, "
        f"torch {machine['torch']}, seed {machine['seed']}",
    )
    columns = ["epoch", "mean loss", "test accuracy", "wall (s)", "bubble", "weight versions"]
    if last.loss_scales:
        columns.append("skipped updates")
    for column in columns:
        table.add_column(column, justify="right")
    for epoch, (run, accuracy) in enumerate(zip(runs, accuracies, strict=True), start=first):
        trained = not run.trace.frame.empty  # else the checkpoint was of the epoch's end
        table.add_row(
            str(epoch),
            f"{sum(run.losses) / len(run.losses):.4f}" if run.losses else "",
            f"{accuracy:.1%}",
            f"{run.wall_s:.2f}",
            f"{run.trace.bubble:.0%}" if trained else "",
            " ".join(map(str, run.weight_buffers)),
            *([str(len(run.skipped_updates))] if run.loss_scales else []),
        )
    Console().print(table)


def _write(run: "Run", folder: Path) -> list[Path]:
    """Write what the run did, and return the paths."""
    from pipekit import plots, provenance

    drawn = _first_batches(run)
    title = f"{drawn.name}, the first {DRAWN_BATCHES} batches"
    figure = plots.timeline(drawn, title=title)
    paths = plots.save(figure, folder / "timeline", drawn.frame)
    events, perfetto = folder / "trace.csv", folder / "trace.perfetto.json"
    run.trace.to_csv(events)
    run.trace.to_perfetto(perfetto, provenance=run.provenance)
    record = folder / "provenance.json"
    provenance.write(record, run.provenance)
    return [*paths.values(), events, perfetto, record]


def _first_batches(run: "Run") -> "Trace":
    """Return the trace up to the end of the first batches' last event."""
    from dataclasses import replace

    frame = run.trace.frame
    last = run.schedule.batches[:DRAWN_BATCHES][-1][-1]
    end = frame.loc[frame["microbatch"] <= last, "end_s"].max()
    frame = frame[frame["start_s"] < end]
    return replace(run.trace, frame=frame.assign(end_s=frame["end_s"].clip(upper=end)))
