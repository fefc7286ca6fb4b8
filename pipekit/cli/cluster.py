"""``pipekit cluster``: run a program on workers whose links are really slow."""

from typing import Annotated

import typer


def cluster(
    command: Annotated[list[str], typer.Argument(metavar="-- COMMAND [ARGS]...")],
    workers: Annotated[int, typer.Option(min=1)],
    link: Annotated[str | None, typer.Option(metavar="RATE")] = None,
) -> None:
    """Run a command once a worker on this machine, with slow links between the workers.

    Each worker has its own network, in which it reaches the others and nothing else.
    It gets the environment of torchrun; printed lines start with its rank.
    If a worker fails, the others stop, and the command exits with its exit code.
    The command needs Linux, root and iproute2.

    \b
    [b]Examples[/b]
      pipekit cluster --workers 2 --link 1gbit -- python train.py --epochs 3
      sudo env "PATH=$PATH" pipekit cluster --workers 4 -- python train.py

    Args:
        command: The command of each worker.
        workers: Number of workers.
        link: Of each worker, in either direction: 100mbit, 2.5gbit. By default no limit.
    """
    from pipekit.clusters.namespaces import run

    if code := run(command, workers, link):
        raise typer.Exit(code)
