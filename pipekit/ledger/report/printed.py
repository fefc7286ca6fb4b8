"""The papers' tables as they print them, ours in each cell: made of the ledger's rows alone.

A cell is a claim of kind "table": its ``conditions`` name the row, its ``quantity`` the column.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, compress
from typing import Any

import pandas as pd

from pipekit.ledger.criteria import is_number
from pipekit.ledger.ledger import Claim
from pipekit.ledger.outcomes import CAUSE_UNKNOWN, CONTRADICTION, Cause, Outcome, Status, show

_LEAST_ROWS = 2
_PRINTED = re.compile(r"\d+\.?(\d*)([MB]?)")
_SUFFIXES = {"": 1, "M": 1e6, "B": 1e9}

Row = dict[str, Outcome]  # the cells of a row, by the headings of their columns


@dataclass(frozen=True)
class PrintedTable:
    """A paper's table of which at least one cell is judged here."""

    paper: str
    name: str
    common: str  # the conditions of all rows
    units: dict[str, str]  # of the columns, by their headings
    rows: dict[str, Row]  # by the conditions that tell them apart

    @property
    def cells(self) -> list[Outcome]:
        return [*chain.from_iterable(row.values() for row in self.rows.values())]


def printed_tables(outcomes: Iterable[Outcome]) -> list[PrintedTable]:
    """Return the tables of two rows and more, in the ledger's order."""
    together: dict[tuple[str, str], list[Outcome]] = {}
    for outcome in outcomes:
        claim = outcome.claim
        if claim.kind == "table" and re.fullmatch(r"Table \d+", claim.where):
            together.setdefault((claim.paper, claim.where), []).append(outcome)
    tables = (_table(*place, cells) for place, cells in together.items())
    return [table for table in tables if table is not None]


def _table(paper: str, name: str, cells: Sequence[Outcome]) -> PrintedTable | None:
    """Return the table of some cells, without those that stand beside its rows and columns."""
    parted = [(cell, tuple(cell.claim.conditions.split(", "))) for cell in cells]
    in_rows = [(cell, parts) for cell, parts in parted if len(parts) == len(parted[0][1])]
    columns = Counter(cell.claim.quantity for cell, _ in in_rows)
    inside = [(cell, parts) for cell, parts in in_rows if columns[cell.claim.quantity] > 1]
    judged = any(cell.record and cell.status is not Status.PRESET for cell, _ in inside)
    conditions = [*dict.fromkeys(parts for _, parts in inside)]
    if not judged or len(conditions) < _LEAST_ROWS:
        return None
    tells = [len({*each}) > 1 for each in zip(*conditions, strict=True)]
    common = ", ".join(compress(conditions[0], (not each for each in tells)))
    table = PrintedTable(paper, name, common, {}, {})
    sentences = defaultdict[str, set[str]](set)
    for cell, _ in inside:
        sentences[cell.claim.quantity].add(cell.claim.claim)
    for cell, parts in inside:
        claim = cell.claim
        heading = claim.claim if len(sentences[claim.quantity]) == 1 else claim.quantity
        table.units[heading] = claim.unit
        table.rows.setdefault(", ".join(compress(parts, tells)), {})[heading] = cell
    return table


def cells(outcomes: Iterable[Outcome]) -> pd.DataFrame:
    """Return a row a cell that is a number: id, paper, ours, status, cause, and ours so changed."""
    rows = []
    for outcome in chain.from_iterable(table.cells for table in printed_tables(outcomes)):
        claim, changed = outcome.claim, _changed(outcome)
        own = None if outcome.record is None else _own(claim, outcome.record.value)
        if own is not None:
            otherwise = None if changed is None else _own(claim, changed.value)
            status = outcome.status.value
            rows.append((claim.id, claim.printed, own, status, outcome.cause, otherwise))
    return pd.DataFrame(rows, columns=["id", "paper", "ours", "status", "cause", "changed"])


def causes_of(row: Row) -> dict[str, list[str]]:
    """Return why cells of a row miss: by cause, with what was changed, columns and ours then."""
    found: dict[str, list[str]] = {}
    for column, outcome in row.items():
        if not outcome.cause:
            continue
        name, text = "no experiment has found it", column
        if cause := _changed(outcome):
            name = f"{cause.name} ({cause.changed})" if cause.changed else cause.name
            own = _own(outcome.claim, cause.value)
            text = column if own is None else f"{column} {_as_printed(outcome.claim, own)}"
        elif outcome.cause != CAUSE_UNKNOWN:
            name = f"{CONTRADICTION}, {outcome.record and outcome.record.contradiction}"
        found.setdefault(name, []).append(text)
    return found


def ours(outcome: Outcome) -> str:
    """Return our value of a cell, with the digits that the paper prints if it is its number."""
    claim, record = outcome.claim, outcome.record
    if record is None:
        return ""
    if record.shown:
        return record.shown
    own = _own(claim, record.value)
    if own is not None:
        return _as_printed(claim, own)
    return f"{show(record.value)}: {claim.record}" if claim.record else show(record.value)


def _changed(outcome: Outcome) -> Cause | None:
    causes = outcome.record.causes if outcome.record else ()
    return next((each for each in causes if each.name == outcome.cause), None)


def _own(claim: Claim, value: Any) -> float | None:
    """Return the number of a value that stands for the printed one, if there is one."""
    if not _PRINTED.fullmatch(claim.value):
        return None
    if isinstance(value, list) and isinstance(claim.target, list) and claim.record.startswith("["):
        places = [k for k, number in enumerate(claim.target) if number == claim.printed]
        value = value[places[0]] if len(places) == 1 else None
    return value if is_number(value) else None


def _as_printed(claim: Claim, number: float) -> str:
    form = _PRINTED.fullmatch(claim.value)
    assert form is not None
    return f"{number / _SUFFIXES[form[2]]:z,.{len(form[1])}f}{form[2]}"
