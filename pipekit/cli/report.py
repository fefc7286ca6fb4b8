"""``pipekit report``: every claim of the papers beside what the runs found."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pipekit.ledger.outcomes import Outcome


def report(
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="A run's folder, or the folder of all runs.")
    ] = Path("results/runs"),
    open: Annotated[bool, typer.Option("--open/--no-open", help="Show it in the browser.")] = False,
) -> None:
    """Lay the papers' claims beside our values; the last line printed names the report.

    Each claim counts with its newest record below FOLDER. The report is written into the run's
    folder, of several runs into the newest's: report.html for any browser, and report.csv.

    \b
    [b]Examples[/b]
      pipekit report
      pipekit report results/runs/2026-01-31T12-00-00.000000Z --open
    """
    from pipekit.ledger import claims
    from pipekit.ledger.report import destination, write

    outcomes = claims.outcomes(folder)
    path = write(outcomes, destination(folder))
    _print(outcomes)
    typer.echo(f"report: {path.resolve()}")
    if open:
        typer.launch(path.resolve().as_uri())


def _print(outcomes: "Sequence[Outcome]") -> None:
    from rich.console import Console
    from rich.table import Table

    from pipekit.ledger.outcomes import Status, summaries

    table = Table()
    table.add_column("paper")
    for column in (*(status.value for status in Status), "decided", "of them met", "weaker kind"):
        table.add_column(column, justify="right")
    for paper, summary in summaries(outcomes).items():
        met = "" if summary.met_share is None else f"{summary.met_share:.0%}"
        numbers = (str(summary.having[status]) for status in Status)
        weaker = str(summary.weakly_decided)
        table.add_row(paper, *numbers, f"{summary.decided_share:.0%}", met, weaker)
    Console().print(table)
