"""``pipekit run``: execute experiments' notebooks."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from pipekit.cli.options import Quiet


class Scale(StrEnum):
    """How much of an experiment to run; what that means stands in its file."""

    QUICK = "quick"
    FULL = "full"


def run(
    experiments: Annotated[
        list[Path], typer.Argument(metavar="EXPERIMENT.yaml", help="What to run.")
    ],
    scale: Annotated[Scale, typer.Option(help="Which of the file's parameters.")] = Scale.QUICK,
    only: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Run this notebook only; may stand several times."),
    ] = None,
    jobs: Annotated[int, typer.Option(min=1, help="How many notebooks run at a time.")] = 1,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume",
            help="Continue the newest unfinished run of the same notebooks at the same scale: "
            "run only what is not complete there, or has changed.",
        ),
    ] = False,
    on: Annotated[
        str | None,
        typer.Option(
            metavar="dask:ADDRESS",
            help="Run on a Dask cluster, whose workers share this file system and environment; "
            "--jobs says how many notebooks at a time.",
        ),
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Execute experiments' notebooks; the last line printed names the results' folder.

    The exit code is 1 if a notebook failed: the others are run all the same.

    \b
    [b]Examples[/b]
      pipekit run experiments/quickstart.yaml
      pipekit run experiments/quickstart.yaml --scale full --only quickstart
      pipekit run experiments/*.yaml --jobs 2 --resume
      pipekit run experiments/staleness.yaml --scale full --resume
      pipekit run experiments/staleness.yaml --on dask:tcp://head:8786 --jobs 16
    """
    from pipekit.ledger.batches import batch

    result = batch.run(
        *experiments,
        scale=scale.value,
        only=only or None,
        jobs=jobs,
        resume=resume,
        quiet=quiet,
        on=on,
    )
    if quiet:
        typer.echo(result)
    if result.failed:
        raise typer.Exit(1)
