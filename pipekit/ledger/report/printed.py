"""The papers' tables as they print them, ours in each cell: made of the ledger's rows alone.

A cell is a claim of kind "table": its ``conditions`` name the row, its ``quantity`` the column.
"""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pandas as pd

from pipekit.ledger.criteria import is_number
from pipekit.ledger.ledger import Claim
from pipekit.ledger.outcomes import CAUSE_UNKNOWN, CONTRADICTION, Cause, Outcome, Status, show

_LEAST_ROWS = 2
_PRINTED = re.compile(r"\d+\.?(\d*)([MB]?)")
_SUFFIXES = {"": 1, "M": 1e6, "B": 1e9}


@dataclass(frozen=True)
class PrintedRow:
    """A row: the conditions that tell it from the others, and its claims by column."""

    names: tuple[str, ...]
    cells: dict[str, Outcome]

    @cached_property
    def causes(self) -> dict[str, list[str]]:
        """Why cells miss: each cause, and the columns with what ours is once it is changed."""
        found: dict[str, list[str]] = {}
        for column, outcome in self.cells.items():
            if outcome.cause:
                cause, otherwise = because(outcome)
                found.setdefault(cause, []).append(f"{column} {otherwise}".strip())
        return found


@dataclass(frozen=True)
class PrintedTable:
    """A paper's table of which at least one cell is judged here."""

    paper: str
    name: str
    common: str  # the conditions of all rows
    units: dict[str, str]  # of the columns, by their headings
    rows: tuple[PrintedRow, ...]

    @property
    def claims(self) -> set[str]:
        """The ids of its cells."""
        return {outcome.claim.id for row in self.rows for outcome in row.cells.values()}


def printed_tables(outcomes: Iterable[Outcome]) -> list[PrintedTable]:
    """Return the tables of two rows and more, in the ledger's order."""
    together: dict[tuple[str, str], list[Outcome]] = {}
    for outcome in outcomes:
        claim = outcome.claim
        if claim.kind == "table" and re.fullmatch(r"Table \d+", claim.where):
            together.setdefault((claim.paper, claim.where), []).append(outcome)
    tables = (_table(*place, cells) for place, cells in together.items())
    return [table for table in tables if table is not None]


def cells(outcomes: Iterable[Outcome]) -> pd.DataFrame:
    """Return a row a cell that is a number: id, paper, ours, status, cause, and ours so changed."""
    rows = []
    for table in printed_tables(outcomes):
        for claim, outcome in ((o.claim, o) for row in table.rows for o in row.cells.values()):
            own = None if outcome.record is None else _own(claim, outcome.record.value)
            if own is not None:
                changed = _changed(outcome)
                otherwise = None if changed is None else _own(claim, changed.value)
                status = outcome.status.value
                rows.append((claim.id, claim.printed, own, status, outcome.cause, otherwise))
    return pd.DataFrame(rows, columns=["id", "paper", "ours", "status", "cause", "changed"])


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


def because(outcome: Outcome) -> tuple[str, str]:
    """Return the cause of a miss, with the change in brackets, and our value so changed."""
    if outcome.cause == CAUSE_UNKNOWN:
        return "no experiment has found it", ""
    cause = _changed(outcome)
    if cause is None:
        return f"{CONTRADICTION}, {outcome.record and outcome.record.contradiction}", ""
    own = _own(outcome.claim, cause.value)
    name = f"{cause.name} ({cause.changed})" if cause.changed else cause.name
    return name, "" if own is None else _as_printed(outcome.claim, own)


def _changed(outcome: Outcome) -> Cause | None:
    causes = outcome.record.causes if outcome.record else ()
    return next((each for each in causes if each.name == outcome.cause), None)


def _table(paper: str, name: str, cells: Sequence[Outcome]) -> PrintedTable | None:
    """Return the table of some cells, without those that stand beside its rows and columns."""
    parts = len(_parts(cells[0]))
    in_rows = [cell for cell in cells if len(_parts(cell)) == parts]
    columns = Counter(cell.claim.quantity for cell in in_rows)
    inside = [cell for cell in in_rows if columns[cell.claim.quantity] > 1]
    judged = any(cell.record and cell.status is not Status.PRESET for cell in inside)
    conditions = dict.fromkeys(_parts(cell) for cell in inside)
    if not judged or len(conditions) < _LEAST_ROWS:
        return None
    varies = [len({*each}) > 1 for each in zip(*conditions, strict=True)]
    headings = _headings([cell.claim for cell in inside])
    rows = tuple(
        PrintedRow(
            tuple(name for name, tells in zip(row, varies, strict=True) if tells),
            {headings[cell.claim.quantity]: cell for cell in inside if _parts(cell) == row},
        )
        for row in conditions
    )
    same = (name for name, tells in zip(next(iter(conditions)), varies, strict=True) if not tells)
    units = {headings[cell.claim.quantity]: cell.claim.unit for cell in inside}
    return PrintedTable(paper, name, ", ".join(same), units, rows)


def _parts(outcome: Outcome) -> tuple[str, ...]:
    return tuple(outcome.claim.conditions.split(", "))


def _headings(claims: Sequence[Claim]) -> dict[str, str]:
    """Return each quantity's heading: the claims' sentence if they share it, or its name."""
    told: dict[str, set[str]] = {}
    for claim in claims:
        told.setdefault(claim.quantity, set()).add(claim.claim)
    return {name: min(own) if len(own) == 1 else name for name, own in told.items()}


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
