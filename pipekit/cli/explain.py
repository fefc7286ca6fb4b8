"""``pipekit explain``: why a run that somebody recorded was slow."""

import re
from pathlib import Path
from typing import Annotated

import typer

import pipekit as pk
from pipekit.cli.common.options import File, save_text


def explain(
    paths: Annotated[list[Path], typer.Argument(metavar="PATH...")],
    json: File = None,
    html: File = None,
    steps: Annotated[str | None, typer.Option(metavar="A:B")] = None,
) -> None:
    """Say which method a recorded trace is of, where its time went, and what would save how much.

    It reads torch.profiler's JSON of torch.distributed.pipelining, ByteDance's Parquet, Primus's
    and MegatronApp's dumps, and pipekit's own traces, each recognised by its content; and what
    Megatron-LM's timers say in a log.

    \b
    [b]Examples[/b]
      pipekit explain traces/ --steps 5:20
      pipekit explain trace.parquet --json why.json --html why.html
      pipekit explain before.json after.json

    Args:
        paths: A trace: a file, or a folder with a file a rank.  Two are compared.
        json: Write everything into a .json file.
        html: Write a page with the timeline and what would be saved.
        steps: Use the recorded steps from A up to, without, B.
    """
    if len(paths) > 2 or (len(paths) == 2 and (json or html)):
        raise ValueError("name one trace, or two without --json and --html to compare them")
    chosen = _slice(steps)
    from pipekit.measured.formats import megatron_timers
    from pipekit.progress import PATIENCE_S, progress_bar

    if all(map(megatron_timers.is_it, paths)):
        if json or html or steps:
            raise ValueError(
                f"{paths[0]} has timers and no trace: leave out --json, --html, --steps"
            )
        for path in paths:
            typer.echo(str(megatron_timers.read(path)))
        return
    bar = progress_bar(paths, desc="reading and replaying", delay=PATIENCE_S)
    found = [pk.explain(pk.read_trace(path, chosen)) for path in bar]
    for number, explanation in enumerate(found):
        typer.echo(("\n" if number else "") + str(explanation))
    if len(found) == 2:
        typer.echo("\n" + pk.measured.compared(*found))
    if json is not None:
        save_text(json, found[0].to_json())
    if html is not None:
        from pipekit.explore.why_page import html as page

        save_text(html, page(found[0]))


def _slice(text: str | None) -> slice | None:
    if text is None:
        return None
    found = re.fullmatch(r"\s*(\d*)\s*:\s*(\d*)\s*", text)
    if not found:
        raise ValueError(f"--steps is A:B, the first and the one behind the last, not {text!r}")
    return slice(*(int(number) if number else None for number in found.groups()))
