"""``pipekit run`` and ``pipekit report``: execute experiments' notebooks, and count the claims."""

from pathlib import Path
from typing import Annotated

import typer

PAPERS_ABREAST = 5  # of the report's table: more do not fit into 80 characters


def run(
    experiments: Annotated[list[Path], typer.Argument(metavar="EXPERIMENT.yaml")],
    scale: Annotated[str, typer.Option(metavar="quick|full")] = "quick",
    only: Annotated[list[str] | None, typer.Option(metavar="NAME")] = None,
    jobs: Annotated[int, typer.Option(min=1)] = 1,
    resume: bool = False,
    on: Annotated[str | None, typer.Option(metavar="dask:ADDRESS")] = None,
    quiet: bool = False,
) -> None:
    """Execute experiments' notebooks; the last line printed names the results' folder.

    The exit code is 1 if a notebook failed; the others run nevertheless.

    \b
    [b]Examples[/b]
      pipekit run experiments/quickstart.yaml --scale full --only quickstart
      pipekit run experiments/*.yaml --jobs 2 --resume
      pipekit run experiments/staleness.yaml --on dask:tcp://head:8786 --jobs 16

    Args:
        experiments: Experiments to run.
        scale: The size of the run: parameters of this scale, from the file.
        only: Run only this notebook; repeat the option for several.
        jobs: Number of notebooks that run at a time.
        resume: Continue the newest unfinished run of the same notebooks at the same scale: run
            only notebooks that are not complete there, or have changed.
        on: Run on a Dask cluster, whose workers share this file system and environment.
    """
    from pipekit.ledger.batches import batch

    result = batch.run(
        *experiments, scale=scale, only=only or None, jobs=jobs, resume=resume, quiet=quiet, on=on
    )
    if quiet:
        typer.echo(result)
    if result.failed:
        raise typer.Exit(1)


def report(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER")] = Path("results/runs"),
    open: bool = False,
) -> None:
    """Lay the papers' claims beside our values; the last line printed names the report.

    Each claim counts with its newest record below FOLDER; the table printed has the papers of which
    something was run. The report goes into FOLDER: report.html for any browser, and report.csv.

    \b
    [b]Examples[/b]
      pipekit report
      pipekit report results/runs/2026-01-31T12-00-00.000000Z --open

    Args:
        folder: A run's folder, or the folder of all runs.
        open: Show it in the browser.
    """
    from pipekit.cli.common.options import print_table
    from pipekit.ledger import claims
    from pipekit.ledger.outcomes import Status
    from pipekit.ledger.report import write
    from pipekit.ledger.report.tables import scores

    outcomes = claims.outcomes(folder)
    begun = {outcome.claim.paper for outcome in outcomes if outcome.record is not None}
    if not begun:
        raise ValueError(f"{folder} has no record of a claim: run a paper first, see pipekit run")
    path = write(outcomes, folder)
    every = scores(outcomes).set_index("paper").drop(index="all").T
    papers = every[[paper for paper in every if paper in begun]]
    decided = papers.loc["pass"] + papers.loc["miss"]
    met = (papers.loc["pass"] / decided).map("{:.0%}".format).where(decided > 0, "")
    told = papers.loc[[status.value for status in Status]].astype(str)
    told.loc["decided"] = (decided / papers.loc["claims"]).map("{:.0%}".format)
    told.loc["of them met"] = met
    told.loc["met, rule written after"] = papers.loc["met after"].astype(str)
    told.loc["by a weaker kind"] = papers.loc["weakly decided"].astype(str)
    for at in range(0, papers.shape[1], PAPERS_ABREAST):
        part = told.iloc[:, at : at + PAPERS_ABREAST]
        rows = [[name, *row] for name, *row in part.itertuples()]
        print_table(["", *part], rows[: len(Status)], rows[len(Status) :], named=True)
    if left := {*every} - {*papers}:
        typer.echo(f"nothing was run of {', '.join(sorted(left))}")
    typer.echo(f"report: {path.resolve()}")
    if open:
        typer.launch(path.resolve().as_uri())
