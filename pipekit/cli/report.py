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

    papers = summaries(outcomes)
    table = Table("")
    for paper in papers:
        table.add_column(paper, justify="right")
    for status in Status:
        table.add_row(status.value, *(str(its.having[status]) for its in papers.values()))
    table.add_section()
    met = ("" if its.met_share is None else f"{its.met_share:.0%}" for its in papers.values())
    table.add_row("decided", *(f"{its.decided_share:.0%}" for its in papers.values()))
    table.add_row("of them met", *met)
    table.add_row("by a weaker kind", *(str(its.weakly_decided) for its in papers.values()))
    Console().print(table)
