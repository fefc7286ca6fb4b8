"""Attack trainings at random, and count what came of it; none may lose a bit, or leave anything.

    python -m experiments.attacks                          # all kinds; make attack
    python -m experiments.attacks kills --tries 20 --seed 7
    python -m experiments.attacks interrupts --output results/reference/faults --seed 1 --add

The kinds: kills (workers and programs are killed, stopped, run out of memory; kills.py), interrupts
(Ctrl-C; interrupts.py), kernel (a notebook's stop button; kernel.py), parts (files of checkpoints
damaged, mixed up, made; parts.py, crafted.py) and disks (full ones; disks.py).  A seed gives the
same attacks again; in which moment they come is the machine's to say.
"""

import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import pandas as pd
import typer
from rich.console import Console
from rich.table import Table
from tqdm import tqdm

from experiments.attacks import disks, interrupts, kernel, kills, parts
from experiments.attacks.left import start_fork_server
from pipekit.choices import require_choice
from pipekit.host.provenance import provenance, write

Rows = Iterator[dict[str, Any]]


def interrupted(attack: Callable[[str, int, int], Iterator[Any]], tries: int, seed: int) -> Rows:
    """Interrupt trainings in all ways, as many tries each."""
    for number, way in enumerate(interrupts.WAYS):
        share = tries // len(interrupts.WAYS) + (number < tries % len(interrupts.WAYS))
        for row in attack(way, share, seed):
            yield row._asdict()


def as_rows(attack: Callable[[int, int], Iterator[Any]], tries: int, seed: int) -> Rows:
    return (row._asdict() for row in attack(tries, seed))


class Kind(NamedTuple):
    """A kind of attack.

    Attributes:
        attack: yields a row for each of so many tries.
        tries: how many by default.
        title: of the table.
        by, outcome: columns whose values are the table's rows and columns.
    """

    attack: Callable[[int, int], Rows]
    tries: int
    title: str
    by: str
    outcome: str


KINDS = {
    "kills": Kind(kills.attack, 60, "workers and programs ended", "end", "resumed over"),
    "interrupts": Kind(
        partial(interrupted, interrupts.attack),
        200,
        "trainings interrupted",
        "way",
        "outcome",
    ),
    "kernel": Kind(partial(interrupted, kernel.attack), 50, "cells interrupted", "way", "outcome"),
    "parts": Kind(partial(as_rows, parts.attack), 500, "parts of checkpoints", "way", "outcome"),
    "disks": Kind(partial(as_rows, disks.attack), 20, "disks of 16 to 156 KB", "way", "outcome"),
}


def failed(rows: pd.DataFrame) -> pd.Series:
    """Return which tries show a fault."""
    wrong = rows["failure"] != ""
    return wrong | ~rows["equal"] if "equal" in rows else wrong


def show(kind: Kind, rows: pd.DataFrame) -> None:
    """Print how often what came of what."""
    outcomes = sorted(rows[kind.outcome].unique())
    table = Table(title=f"{len(rows)} {kind.title} (measured)")
    table.add_column(kind.by)
    for column in ("tries", *outcomes, "faults"):
        table.add_column(column, justify="right")
    for name, group in [*rows.groupby(kind.by, sort=False), ("all", rows)]:
        counts = [str((group[kind.outcome] == outcome).sum()) for outcome in outcomes]
        table.add_row(str(name), str(len(group)), *counts, str(failed(group).sum()))
    Console(width=max(140, Console().width)).print(table)
    for row in rows[failed(rows)].to_dict("records"):
        typer.secho(f"FAULT: {row}", fg="red")


def keep(name: str, rows: pd.DataFrame, seed: int, folder: Path, add: bool) -> None:
    """Write a row a try, and where they are from; or add them to what is there."""
    file, record = folder / f"{name}.csv", folder / f"{name}.json"
    rows, seeds = rows.drop(columns="said", errors="ignore"), [seed]
    if add and file.exists():
        rows = pd.concat([pd.read_csv(file, keep_default_na=False), rows])
        seeds = [*json.loads(record.read_text(encoding="utf-8"))["parameters"]["seeds"], seed]
    folder.mkdir(parents=True, exist_ok=True)
    rows.to_csv(file, index=False)
    write(record, provenance("measured", parameters={"seeds": seeds}))


def main(
    kinds: Annotated[list[str] | None, typer.Argument(help=", ".join(KINDS))] = None,
    tries: Annotated[
        int | None, typer.Option(min=1, help="Of each kind.", show_default=False)
    ] = None,
    seed: Annotated[int, typer.Option(help="Of what is drawn.")] = 0,
    output: Annotated[
        Path | None, typer.Option(help="Folder for the tries and provenance.", show_default=False)
    ] = None,
    add: Annotated[bool, typer.Option("--add", help="Add to the tries in the folder.")] = False,
) -> None:
    """Attack trainings at random; the exit code is 1 if any attack shows a fault."""
    for name in kinds or ():
        require_choice("kinds", name, KINDS)
    # Whatever is left there shows; the fork server's own socket goes with this process.
    os.environ["TMPDIR"] = temporary = tempfile.mkdtemp(prefix="pipekit-attacks-")
    start_fork_server()
    tempfile.tempdir = temporary
    faults = 0
    try:
        for name in kinds or KINDS:
            kind = KINDS[name]
            wanted, rows = tries or kind.tries, []
            # Ctrl-C ends a kind and keeps its tries.
            with tqdm(total=wanted, unit="try", desc=name) as bar, suppress(KeyboardInterrupt):
                for row in kind.attack(wanted, seed):
                    rows.append(row)
                    if row["failure"]:
                        bar.write(f"FAULT: {row}", file=sys.stderr)
                    bar.update()
            if not rows:
                continue
            frame = pd.DataFrame(rows)
            show(kind, frame)
            if output is not None:
                keep(name, frame, seed, output, add)
            faults += int(failed(frame).sum())
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    typer.run(main)
