"""The report: every claim of the papers beside what we found, as one file for any browser."""

import base64
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path
from re import match
from typing import Any

import pandas as pd
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from pipekit.ledger.ledger import Claim
from pipekit.ledger.outcomes import MEANING, Outcome, Status, summaries
from pipekit.provenance import LABELS

TITLES = {
    "pipedream": "PipeDream",
    "gpipe": "GPipe",
    "torchgpipe": "torchgpipe",
    "pipedream-2bw": "PipeDream-2BW and PipeDream-Flush",
}

SYMBOLS = {
    Status.PASS: "✔",
    Status.MISS: "✘",
    Status.UNDECIDED: "≈",
    Status.INVALID: "!",
    Status.REPORTED: "●",
    Status.PRESET: "=",
    Status.NOT_RUN: "○",
    Status.OUT_OF_REACH: "–",
}
"""A sign beside each status: the words alone are slow to scan, and colours not always seen."""

_MEDIA = {".svg": "image/svg+xml", ".png": "image/png"}


@dataclass(frozen=True)
class Figure:
    """A figure's file, embedded once, and the outcomes of the claims that show it."""

    anchor: str
    path: Path
    outcomes: tuple[Outcome, ...]

    @property
    def source(self) -> str:
        """The file as a data URI: an image of its own, so that ids inside two SVGs cannot clash."""
        data = base64.b64encode(self.path.read_bytes()).decode()
        return f"data:{_MEDIA[self.path.suffix]};base64,{data}"


@dataclass(frozen=True)
class Section:
    """A paper's part of the report: its claims by the place they stand at, and their figures."""

    paper: str
    title: str
    places: dict[str, list[Outcome]]
    figures: tuple[Figure, ...]


def destination(folder: Path) -> Path:
    """Return the folder that gets the report: a run's own, or the newest run's of many.

    A run is a folder with ``provenance.json``, as :func:`pipekit.ledger.batch.run` leaves it.
    A folder without runs gets the report itself.
    """
    if (folder / "provenance.json").exists():
        return folder
    runs = sorted(path.parent for path in folder.glob("*/provenance.json"))
    return runs[-1] if runs else folder


def write(outcomes: Sequence[Outcome], folder: Path) -> Path:
    """Write ``report.html`` and ``report.csv``, and return the path of the first.

    The page needs neither a network nor a file beside it.
    """
    figures = _figures(outcomes)
    page = _template().render(
        sections=_sections(outcomes, figures),
        summaries=summaries(outcomes),
        runs=_runs(outcomes),
        figure_of={o.claim.id: figure.anchor for figure in figures for o in figure.outcomes},
        meaning=MEANING,
        symbols=SYMBOLS,
        labels={label: what for label, what in LABELS.items() if label != "paper"},
        titles=TITLES,
        recorded=sum(outcome.record is not None for outcome in outcomes),
        total=len(outcomes),
        utc=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
    )
    html = folder / "report.html"
    html.write_text(page, encoding="utf-8")
    frame(outcomes).to_csv(folder / "report.csv", index=False)
    return html


def frame(outcomes: Iterable[Outcome]) -> pd.DataFrame:
    """Return a row a claim: the ledger's columns, then our value (as JSON) and its origin."""
    return pd.DataFrame([_row(outcome) for outcome in outcomes])


def _row(outcome: Outcome) -> dict[str, Any]:
    claim, record = outcome.claim, outcome.record
    origin = {} if record is None else record.provenance
    return {
        "id": claim.id,
        "paper": claim.paper,
        "where": claim.where,
        "claim": claim.claim,
        "conditions": claim.conditions,
        "value": claim.value,
        "unit": claim.unit,
        "wanted": claim.label,
        "tolerance": claim.tolerance,
        "check": claim.check,
        "record": claim.record,
        "status": outcome.status.value,
        "ours": None if record is None else json.dumps(record.value, ensure_ascii=False),
        "ratio": outcome.ratio,
        "repeats": json.dumps(record.repeats) if record and record.repeats else None,
        "label": None if record is None else record.label,
        "weaker": outcome.label_note,
        "why": outcome.why,
        "our_note": None if record is None else record.note,
        "notebook": None if record is None else record.notebook,
        "figure": None if record is None else record.figure,
        **{key: origin.get(key) for key in ("utc", "commit", "seed", "cpu", "torch", "pipekit")},
    }


def _template() -> Any:
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("report.html.j2")


def _sections(outcomes: Sequence[Outcome], figures: Sequence[Figure]) -> list[Section]:
    sections = []
    for paper, members in groupby(outcomes, key=lambda outcome: outcome.claim.paper):
        places: dict[str, list[Outcome]] = {}
        for outcome in members:
            places.setdefault(_place(outcome.claim), []).append(outcome)
        theirs = tuple(figure for figure in figures if figure.outcomes[0].claim.paper == paper)
        sections.append(Section(paper, TITLES.get(paper, paper), places, theirs))
    return sections


def _place(claim: Claim) -> str:
    """Return the section, table or figure that a claim is listed under."""
    found = match(r"Abstract|§\d+(\.\d+)*|(Figure|Table) \d+|Appendix", claim.where)
    return found.group() if found else claim.where


def _figures(outcomes: Iterable[Outcome]) -> list[Figure]:
    shown: dict[Path, list[Outcome]] = {}
    for outcome in outcomes:
        if outcome.record is not None and outcome.record.figure is not None:
            path = outcome.record.folder / Path(outcome.record.figure).name
            if path.suffix in _MEDIA and path.exists():
                shown.setdefault(path, []).append(outcome)
    return [
        Figure(f"figure-{number}", path, tuple(having))
        for number, (path, having) in enumerate(shown.items(), 1)
    ]


def _runs(outcomes: Iterable[Outcome]) -> list[str]:
    records = [outcome.record for outcome in outcomes if outcome.record is not None]
    return sorted({record.folder.parent.name for record in records})
