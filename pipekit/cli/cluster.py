"""``pipekit cluster``: run a program on workers whose links are really slow."""

from typing import Annotated

import typer


def cluster(
    command: Annotated[
        list[str], typer.Argument(metavar="-- COMMAND [ARGS]...", help="What each worker runs.")
    ],
    workers: Annotated[int, typer.Option(min=1, help="How many.")],
    link: Annotated[
        str | None,
        typer.Option(
            metavar="RATE",
            help="Each worker's, in either direction: 100mbit, 2.5gbit. By default no limit.",
        ),
    ] = None,
) -> None:
    """Run a command once a worker on this machine, with slow links between the workers.

    Each has a network of its own, in which it reaches the others and nothing else.
    The environment is that of torchrun; printed lines start with the worker's rank.
    If one fails, the others are ended, and the exit code is that worker's.
    It needs Linux, root and iproute2.

    \b
    [b]Examples[/b]
      pipekit cluster --workers 2 --link 1gbit -- python train.py --epochs 3
      sudo env "PATH=$PATH" pipekit cluster --workers 4 -- python train.py
    """
    from pipekit.clusters.namespaces import run

    if code := run(command, workers, link):
        raise typer.Exit(code)
