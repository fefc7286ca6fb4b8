"""``pipekit parity``: whether somebody's pipeline computes the gradients of the plain loop."""

from pathlib import Path
from typing import Annotated

import typer

from pipekit.cli.common.options import save_text


def parity(
    adapter: Annotated[
        str, typer.Argument(metavar="FILE.py:ADAPTER", help="Or package.module:Adapter.")
    ],
    model: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="dense (the default), tied, skips, batch-norm, moe, frozen, tokens, odd or "
            "dropout; several, one option each.",
        ),
    ] = None,
    every: Annotated[
        bool, typer.Option("--all", help="Judge on every model of the suite.")
    ] = False,
    processes: Annotated[
        int, typer.Option(min=1, help="Ranks to start, with torchrun's variables.")
    ] = 1,
    timeout: Annotated[
        float, typer.Option(help="Seconds after which a run is ended with all its processes.")
    ] = 60.0,
    json: Annotated[
        Path | None, typer.Option(dir_okay=False, help="Write the verdicts into a .json file.")
    ] = None,
) -> None:
    """Say whether a trainer's gradients are the plain loop's, and if not, which fault it has.

    An adapter has build(model, optimizer), step(batch) and parameters(); docs/gradients.md shows
    one for torch.distributed.pipelining. The exit code is 0 if all is right, 1 for a fault, and 2
    if the trainer could not be judged.

    \b
    [b]Examples[/b]
      pipekit parity adapter.py:Adapter --processes 2
      pipekit parity my.trainer:Adapter --all --json verdicts.json
    """
    if every and model:
        raise ValueError("name models by --model, or take every one by --all, not both")
    from pipekit.choices import require_choice
    from pipekit.parity.judge import parity as judge
    from pipekit.parity.suite import SUITE

    names = [*SUITE] if every else model or ["dense"]
    for name in names:
        require_choice("model", name, SUITE)
    verdicts = []
    for name in names:
        verdicts.append(judge(adapter, name, processes, timeout))
        typer.echo(verdicts[-1].text)
    if json is not None:
        text = ",\n".join(verdict.to_json() for verdict in verdicts)
        save_text(json, f"[{text}]\n")
    if not all(verdict.ok for verdict in verdicts):
        raise typer.Exit(1)
