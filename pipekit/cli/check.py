"""``pipekit check``: prove that a table, and an order of its messages, can never hang."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

import pipekit as pk
from pipekit.choices import require_choice
from pipekit.cli.common.options import TABLE, File, require_suffix, save_text
from pipekit.cli.schedule import chosen_schedule
from pipekit.units import require_amount

if TYPE_CHECKING:
    from pipekit.schedules.messages import MessageProgram


def check(
    method: Annotated[
        str, Argument(metavar="METHOD", help=f"{TABLE} Or torch's CSV, with or without messages.")
    ],
    stages: int = 4,
    replicas: str | None = None,
    microbatches: int = 8,
    batches: int = 1,
    messages: Annotated[str | None, Option(metavar="CHANNEL")] = None,
    order: str = "torch",
    asynchronous: bool = False,
    communicators: str = "direction",
    shapes_first: bool = False,
    link: float = 0,
    repair: File = None,
) -> None:
    """Prove that a table, and an order of its messages, can never hang, whatever the timing.

    If it can, the fewest calls that wait for one another are named, and the exit code is 1.

    \b
    [b]Examples[/b]
      pipekit check flush --messages rendezvous --order in_order
      pipekit check interleaved --stages 8 --messages rendezvous --asynchronous
      pipekit check compute_comms.csv --messages eager:1 --repair repaired.csv

    Args:
        microbatches: Number in each batch.
        batches: Number of batches, with an update each.
        messages: Prove the messages, too: rendezvous (a send ends with its receive), eager (it
            never waits), or eager:2 (two may be under way).
        order: Of the messages, if the file has none: in_order, batched (Megatron-LM's 1F1B),
            torch, or pipekit (this engine's).
        asynchronous: Messages run beside a worker's tasks.
        communicators: Messages follow one another in each direction, pair or worker.
        shapes_first: Shapes are exchanged before each group.
        link: Slots that a message takes; a forward takes 1.
        repair: Write an order that is proved into this .csv (torch's).
    """
    require_suffix(repair, (".csv",), "--repair")
    others = order != "torch" or communicators != "direction" or asynchronous or shapes_first
    if messages is None and (others or link or repair):
        raise ValueError(
            "--order, --asynchronous, --communicators, --shapes-first, --link and --repair are of "
            "messages: name a channel, e.g. --messages rendezvous"
        )
    from pipekit.schedules import messages as proofs
    from pipekit.schedules.methods.by_name import parse_replicas

    how = {"communicators": communicators, "shapes_first": shapes_first, "waits": not asynchronous}
    channel = None if messages is None else proofs.MessageChannel.parse(messages, **how)
    require_choice("--order", order, proofs.POLICIES)
    require_amount("--link", link)
    program = _program_of(Path(method))
    split = stages if replicas is None else parse_replicas(replicas)
    table = program.table if program else chosen_schedule(method, split, microbatches, batches)
    pk.schedules.check(table)
    typer.echo(f"{table.title}: no task waits for ever (exact)")
    if not channel:
        return
    program = program if program and program.has_messages else proofs.with_messages(table, order)
    verdict = proofs.check_messages(program, channel, link=link)
    typer.echo(f"{verdict} (exact)")
    if repair:
        verdict = proofs.repair(program, channel, link=link)
        typer.echo(f"{verdict} (exact)")
        save_text(repair, proofs.write_torch_comms(verdict.program))
    if not verdict.is_sound:
        raise typer.Exit(1)


def _program_of(file: Path) -> "MessageProgram | None":
    """Return the program in a file of torch's; None for any other file, and for a method."""
    from pipekit.reading import read_text
    from pipekit.schedules.messages import read_torch_comms

    if file.suffix != ".csv" or not file.is_file() or read_text(file).startswith("#"):
        return None
    try:
        return read_torch_comms(file)
    except pk.ScheduleError as error:
        raise pk.ScheduleError(f"{file}: {error}") from None
