"""The report's page: the papers' tables with ours, and a card a claim, by paper and figure."""

import functools
import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pipekit.host.provenance import LABELS
from pipekit.ledger.ledger import Claim
from pipekit.ledger.outcomes import CAUSE_UNKNOWN, Outcome, Record, Status
from pipekit.ledger.report.printed import causes_of, cells, ours, printed_tables
from pipekit.ledger.report.scoreboard import TITLES, template
from pipekit.ledger.report.tables import changes, experiments, frame, kinds, scores
from pipekit.reading import parse_json, read_text


def links(record: Record, folder: Path) -> list[tuple[str, str]]:
    """Return addresses and texts of links from a report in ``folder`` to a record's origin."""
    found = []
    executed = record.folder.with_suffix(".ipynb")
    if executed.exists():
        page = executed.with_suffix(".html")
        address = _address(page if page.exists() else executed, folder)
        text = executed.name
        if record.id in _cells(executed):
            number, id = _cells(executed)[record.id]
            address += f"#{anchor(id)}" if page.exists() else ""
            text += f", cell {number}"
        found.append((address, text))
    if record.figure is not None:
        numbers = record.folder / Path(record.figure).with_suffix(".csv").name
        if numbers.exists():
            found.append((_address(numbers, folder), numbers.name))
    return found


def anchor(cell: str) -> str:
    """Return the fragment by which the address of a notebook's page leads to the cell of an id."""
    return f"cell-id={cell}"


def _address(path: Path, folder: Path) -> str:
    return Path(os.path.relpath(path, folder.resolve())).as_posix()


@functools.cache
def _cells(executed: Path) -> Mapping[str, tuple[int, str]]:
    """Return the number, from 1, and the id of the cell that printed each claim's outcome."""
    cells: dict[str, tuple[int, str]] = {}
    # Somebody else's change: the notebook is linked all the same.
    with suppress(ValueError, LookupError, AttributeError, TypeError):
        notebook = parse_json(read_text(executed), dict[str, Any])
        for number, cell in enumerate(notebook["cells"], 1):
            for output in cell.get("outputs", ()):
                told = "".join(output.get("text", ""))
                for claim in re.findall(r"(?m)^[a-z ]+: ([^\s:]+): ", told):
                    cells.setdefault(claim, (number, cell.get("id", "")))
    return cells


MACHINE = "python", "torch", "pipekit", "platform", "cpu", "cores", "memory_gb", "gpus"
_PICTURES = {".svg", ".png"}


def write(outcomes: Sequence[Outcome], folder: Path) -> Path:
    """Write ``report.html``, and as CSV report, scores, kinds, what_if, printed; return the first.

    The page's figures and links are files of the runs, where they lie.
    """
    tried, counted = experiments(outcomes), scores(outcomes)
    records = [outcome.record for outcome in outcomes if outcome.record is not None]
    origins = [record.provenance for record in records]
    found = Counter(outcome.cause for outcome in outcomes if outcome.cause)
    causes = sorted(found, key=lambda cause: (cause == CAUSE_UNKNOWN, -found[cause]))
    page = template("page.html.j2").render(
        papers=_groups(outcomes),
        heading=_heading,
        tables=printed_tables(outcomes),
        ours=ours,
        causes_of=causes_of,
        address=lambda path: _address(path, folder),
        causes={name: [each for each in outcomes if each.cause == name] for name in causes},
        what_if=changes(tried).to_dict("records"),
        scores=counted.to_dict("records"),
        kinds=kinds(outcomes).to_dict("records"),
        runs=sorted({record.folder.parent.name for record in records}),
        machine=MACHINE,
        machines=sorted({", ".join(f"{key} {o.get(key)}" for key in MACHINE) for o in origins}),
        links={record.id: links(record, folder) for record in records},
        statuses=[*Status],
        labels={label: what for label, what in LABELS.items() if label != "paper"},
        titles=TITLES,
        recorded=len(records),
        utc=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
    )
    html = folder / "report.html"
    html.write_text(page, encoding="utf-8")
    tables = {"report": frame(outcomes), "scores": counted, "kinds": kinds(outcomes)}
    for name, table in (tables | {"what_if": tried, "printed": cells(outcomes)}).items():
        table.to_csv(folder / f"{name}.csv", index=False)
    return html


def _groups(outcomes: Iterable[Outcome]) -> dict[str, dict[Path | str, list[Outcome]]]:
    """Return, by paper, claims that share a figure's file or, without one, their place in it."""
    papers: dict[str, dict[Path | str, list[Outcome]]] = {}
    for outcome in outcomes:
        groups = papers.setdefault(outcome.claim.paper, {})
        groups.setdefault(_figure(outcome) or _place(outcome.claim), []).append(outcome)
    return papers


def _heading(outcomes: Iterable[Outcome]) -> str:
    """Return the tables and figures that claims of a group stand at, or else the first's place."""
    found = dict.fromkeys(_place(outcome.claim) for outcome in outcomes)
    named = [place for place in found if place.startswith(("Figure", "Table"))]
    return ", ".join(named or list(found)[:1])


def _place(claim: Claim) -> str:
    """Return the section, table or figure that a claim is listed under."""
    found = re.match(r"Abstract|§\d+(\.\d+)*|(Figure|Table) \d+|Appendix", claim.where)
    return found.group() if found else claim.where


def _figure(outcome: Outcome) -> Path | None:
    if outcome.record is None or outcome.record.figure is None:
        return None
    path = outcome.record.folder / Path(outcome.record.figure).name
    return path if path.suffix in _PICTURES and path.exists() else None
