"""``pipekit parity``: whether somebody's pipeline computes the gradients of the plain loop."""

from typing import Annotated

import typer

from pipekit.cli.common.options import File, save_text


def parity(
    adapter: Annotated[str, typer.Argument(metavar="FILE.py:ADAPTER")],
    model: Annotated[list[str] | None, typer.Option(metavar="NAME")] = None,
    every: Annotated[bool, typer.Option("--all")] = False,
    processes: Annotated[int, typer.Option(min=1)] = 1,
    timeout: float = 60.0,
    json: File = None,
) -> None:
    """Say whether a trainer's gradients are the plain loop's, and if not, which fault it has.

    An adapter has build(model, optimizer), step(batch) and parameters(); docs/gradients.md shows
    one for torch.distributed.pipelining. The exit code is 0 if all is right, 1 for a fault, and 2
    if the trainer could not be judged.

    \b
    [b]Examples[/b]
      pipekit parity adapter.py:Adapter --processes 2
      pipekit parity my.trainer:Adapter --all --json verdicts.json

    Args:
        adapter: Or package.module:Adapter.
        model: dense (the default), tied, skips, batch-norm, moe, frozen, tokens, odd or dropout;
            several, one option each.
        every: Judge on every model of the suite.
        processes: Ranks to start, with torchrun's variables.
        timeout: Seconds after which a run is ended with all its processes.
        json: Write the verdicts into a .json file.
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
