"""``pipekit published``: trainings that others measured, and how far our predictions are off."""

import csv
import hashlib
from pathlib import Path
from typing import Annotated

import typer

from pipekit.choices import require_choice
from pipekit.performance.constants import measurements

SETS = Path(__file__).parents[1] / "performance" / "published_sets.csv"
ERRORS = Path(__file__).parents[2] / "results" / "reference" / "published" / "errors.csv"
Values = dict[str, str]


def published(
    action: Annotated[str, typer.Argument(metavar="list|get|table")],
    name: Annotated[str | None, typer.Argument(metavar="SET")] = None,
    folder: Path | None = None,
) -> None:
    """List published trainings, find a set's file, or print how far our predictions are off.

    No set is in pipekit: get says what to fetch from whom, and checks the file that you have.

    \b
    [b]Examples[/b]
      pipekit published list
      pipekit published get vtrain_multi_node --folder measured/
      pipekit published table

    Args:
        action: The sets, one of them, or our errors.
        name: Which set to get.
        folder: Where sets are; by default the folder that PIPEKIT_MEASURED names.
    """
    require_choice("action", action, ("list", "get", "table"))
    if (name is not None) != (action == "get"):
        raise ValueError("name a set after get, and none after list and table")
    sets = {row["set"]: row for row in _rows(SETS)}
    if action == "list":
        for row in sets.values():
            typer.echo(f"{row['set']:<20}{row['source']} ({row['licence']})")
    elif action == "table":
        _print_table()
    else:
        require_choice("set", name, sets)
        typer.echo(_found(sets[str(name)], folder or measurements()))


def _rows(path: Path) -> list[Values]:
    with path.open(encoding="utf-8", newline="") as lines:
        return list(csv.DictReader(lines))


def _found(row: Values, folder: Path | None) -> str:
    """Return where a set is, and whether its bytes are those that errors were computed from."""
    fetch = f"fetch {row['path']} of {row['source']} ({row['licence']})"
    path = folder / row["file"] if folder else None
    if not (path and path.exists()):
        return f"{fetch}, and keep its table as FOLDER/{row['file']}, FOLDER being --folder"
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    if digest == row["sha256"]:
        return f"{path}: the file that our errors were computed from"
    return (
        f"{path}: another file than our errors were computed from (sha256 {digest[:12]}); {fetch}"
    )


def _print_table() -> None:
    if not ERRORS.exists():
        raise ValueError(
            "the table of errors is in the repository, and not in an installed pipekit: clone it"
        )
    typer.echo(f"{'set':<20}{'rows':>6}{'ours':>11}{'floor':>11}{'simulator':>11}{'coverage':>11}")
    for row in _rows(ERRORS):
        keys = ("mean", "floor", "simulator", "coverage")
        shares = (f"{float(row[key]):.1%}" if row[key] else "-" for key in keys)
        typer.echo(f"{row['set']:<20}{row['rows']:>6}" + "".join(f"{each:>11}" for each in shares))
    typer.echo(
        "Mean errors of the seconds of a step, of rows that nothing was fitted on: by ours, by one "
        "constant, and by the publishers' own simulator; coverage is of intervals of 80 %."
    )
