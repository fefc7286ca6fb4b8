"""``pipekit run``: execute an experiment's notebooks."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


class Scale(StrEnum):
    """How much of an experiment to run; what that means stands in its file."""

    QUICK = "quick"
    FULL = "full"


def run(
    experiment: Annotated[
        Path, typer.Argument(metavar="EXPERIMENT.yaml", help="What to run.", show_default=False)
    ],
    scale: Annotated[Scale, typer.Option(help="Which of the file's parameters.")] = Scale.QUICK,
    only: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Run this notebook only; may stand several times.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Execute an experiment's notebooks; the last line printed names the results' folder.

    The exit code is 1 if a notebook failed: the others are run all the same.

    \b
    [b]Examples[/b]
      pipekit run experiments/quickstart.yaml
      pipekit run experiments/quickstart.yaml --scale full --only quickstart
    """
    from pipekit.reproduction import batch

    if batch.run(experiment, scale.value, only or None).failed:
        raise typer.Exit(1)
