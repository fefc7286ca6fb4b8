"""``pipekit claim``: one claim with our value and how it was found, or a list of claims."""

import json
from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pipekit.choices import require_choice

if TYPE_CHECKING:
    from pipekit.ledger.outcomes import Outcome, Record

CHECKOUT = Path(__file__).parents[2]
REFERENCE = CHECKOUT / "results" / "reference" / "papers"
"""What one whole run of ``make papers`` recorded."""


def claim(
    id: Annotated[str | None, typer.Argument(metavar="ID")] = None,
    listed: Annotated[bool, typer.Option("--list")] = False,
    paper: Annotated[str | None, typer.Option(metavar="NAME")] = None,
    outcome: Annotated[str | None, typer.Option(metavar="OUTCOME")] = None,
    again: bool = False,
    run: Annotated[Path | None, typer.Option(metavar="FOLDER")] = None,
) -> None:
    """Print a claim of a paper with our value, the tolerance, the outcome and its cause.

    \b
    [b]Examples[/b]
      pipekit claim gpipe-bubble-values --again
      pipekit claim --list --paper pipedream --outcome miss

    Args:
        id: A claim of data/claims.csv.
        listed: Print a line for each claim.
        paper: List only claims of this paper.
        outcome: List only claims with this outcome.
        again: Run the claim's notebook now, at quick scale.
        run: A run's folder; by default the committed values.
    """
    from pipekit.ledger.claims import load, outcomes
    from pipekit.ledger.outcomes import Status

    if listed == (id is not None) or (id is None and again) or (id and (paper or outcome)):
        raise ValueError("name one claim, or say --list, which --paper and --outcome shorten")
    if again and run:
        raise ValueError("--again makes a new run, which it shows: leave out --again or --run")
    if run is None and not REFERENCE.is_dir():
        raise ValueError(
            "our values and notebooks are in the repository, and not in an installed pipekit: "
            "clone it, or see a run of yours by --run FOLDER"
        )
    folder, claims = run or REFERENCE, load()
    if id is None:
        papers = dict.fromkeys(claim.paper for claim in claims.values())
        require_choice("--paper", paper, [None, *papers])
        require_choice("--outcome", outcome, [None, *(status.value for status in Status)])
        lines = [
            "\t".join(filter(None, [each.claim.id, each.status.value, each.cause]))
            for each in outcomes(folder, paper)
            if outcome in (None, each.status.value)
        ]
        typer.echo("\n".join(lines) or f"no claim of {paper or 'any paper'} is of {outcome!r}")
        return
    require_choice("the claim (pipekit claim --list names all)", id, claims)
    judged = {each.claim.id: each for each in outcomes(folder, claims[id].paper)}
    if again:
        folder = _run_again(judged[id])
        judged = {each.claim.id: each for each in outcomes(folder, claims[id].paper)}
    typer.echo(_told(judged[id], folder, judged.values()))


def _told(outcome: "Outcome", folder: Path, others: "Iterable[Outcome]") -> str:
    """Return a line for each question a reviewer asks of a claim; ``others`` are its paper's."""
    claim, record = outcome.claim, outcome.record
    printed = f"{claim.value} {claim.unit}".strip()
    what = claim.record or f"{claim.quantity} in {claim.unit}"
    cause = outcome.cause
    reasons = [outcome.why, outcome.label_note, cause and _cause(cause, outcome, others)]
    said = {
        "paper": f"{claim.claim} ({claim.paper}, {claim.where}; {claim.quantity}: {printed})",
        "when": claim.conditions,
        "ours": f"{outcome.ours} ({record.label}; {what})" if record else "nothing was recorded",
        "by": record and _place(record),
        "note": record and record.note,
        "figure": record and record.figure,
        "tolerance": f"{outcome.passes_if}, for: {claim.tolerance or 'the printed digits'}",
        "outcome": outcome.status.value,
        "because": "; ".join(filter(None, reasons)) or "ours meets the tolerance",
        "from": f"{folder} ({record.provenance['utc']})" if record else str(folder),
    }
    told = ((f"{name}:", " ".join(text.split())) for name, text in said.items() if text)
    return "\n".join(f"{name:<11}{text}" for name, text in told)


def _notebook(record: "Record | None") -> str:
    """Return where the repository has the notebook that made a record, or an empty text."""
    name = record and record.provenance.get("notebook")
    return f"notebooks/{name}.ipynb" if name else ""


def _place(record: "Record") -> str:
    """Return which notebook has recorded a claim, its cell if that names it, and its function."""
    if not (place := _notebook(record)):
        return "a notebook of your own"
    if (CHECKOUT / place).exists():
        cells = json.loads((CHECKOUT / place).read_text(encoding="utf-8"))["cells"]
        sources = ("".join(cell["source"]) for cell in cells)
        named = (n for n, source in enumerate(sources, 1) if f'"{record.id}"' in source)
        place += "".join(f", cell {number}" for number in islice(named, 1))
    function = record.provenance.get("function")
    return f"{place}: {function}()" if function else place


def _cause(cause: str, outcome: "Outcome", others: "Iterable[Outcome]") -> str:
    from pipekit.ledger.outcomes import BROKEN, CAUSE_UNKNOWN, TURNED, show

    said, tried = f"cause: {cause}", outcome.record.causes if outcome.record else ()
    if cause == CAUSE_UNKNOWN and tried:
        return f"{said}; tried: {', '.join(f'{each.name} ({show(each.value)})' for each in tried)}"
    becomes = [each for other in others for _, each in other.tried(cause)]
    if not becomes:
        return said
    turned, broken = becomes.count(TURNED), becomes.count(BROKEN)
    return f"{said} (of the paper's claims its change turns {turned} and breaks {broken})"


def _run_again(outcome: "Outcome") -> Path:
    import csv
    import os

    from pipekit.ledger.batches import batch
    from pipekit.ledger.batches.experiment import load

    found = _notebook(outcome.record)
    measured = csv.DictReader((REFERENCE / "notebooks.csv").read_text("utf-8").splitlines())
    usual = {row["name"]: f"{float(row['seconds']):.0f} s on {row['cpu']}" for row in measured}
    for file in sorted((CHECKOUT / "experiments").glob("*.yaml")) if found else ():
        for job in load(file).jobs:
            if job.notebook == (CHECKOUT / found).resolve():
                takes = usual.get(job.name, "a time that nobody has noted")
                typer.echo(f"{found} takes {takes} (measured)", err=True)
                made = batch.run(file, only=[job.name])
                (ended,) = made.notebooks
                memory = f"{ended.memory_gb} GB" if ended.memory_gb else "memory that nobody told"
                took = f"{ended.seconds:.0f} s, {memory}, {os.cpu_count()} cores"
                typer.echo(f"took {took} (measured)", err=True)
                if ended.error:
                    raise ValueError(f"{found} failed, see {made.folder}: {ended.error}")
                return made.folder
    raise ValueError(f"no notebook here finds a value of {outcome.claim.id}: {outcome.why}")
