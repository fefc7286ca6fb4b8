"""The papers' claims: ``data/claims.csv``, read and checked."""

import csv
import functools
import io
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from pydantic_core import from_json

from pipekit.ledger.criteria import evaluate, is_number, parse
from pipekit.reading import read_text

OUT_OF_REACH = "out-of-reach"  # the label of a claim that nobody can check here
REFUTATION = "refutation"  # the kind whose criterion holds if the paper's statement is false

_CHECKOUT = Path(__file__).parents[2] / "data" / "claims.csv"  # installed in editable mode
_WHEEL = Path(__file__).with_name("claims.csv")  # the copy that a wheel carries


@dataclass(frozen=True)
class Claim:
    """One testable claim of a paper, a row of the ledger.

    Attributes:
        id: what :func:`pipekit.claims.record` names it by.
        paper, where: one of :data:`.TITLES`; its section, table or figure.
        kind, claim: say "table"; in a sentence.
        quantity, value, unit: what was measured, and the paper's number, as printed.
        conditions: under which it holds.
        label: how it is wanted here: "measured", "emulated", "simulated", "exact", "out-of-reach".
        tolerance, check: the criterion in prose, which has the last word; in the language of
            :mod:`pipekit.ledger.criteria`.
        target: what it compares with; by default ``value``.
        note: what else there is to know, contradictions of the paper among it.
        written: "after" if the criterion or target has changed since values were recorded.
        record: what to record where that is not simply ``quantity`` in ``unit``.
        preset: why no experiment of ours can confirm the claim; empty for all that can be tested.
    """

    id: str
    paper: str
    where: str
    kind: str
    claim: str
    quantity: str
    value: str
    unit: str
    conditions: str
    label: str
    tolerance: str
    note: str
    check: str
    target: Any
    written: str
    record: str
    preset: str

    @property
    def out_of_reach(self) -> bool:
        """Whether the claim can be checked nowhere here."""
        return self.label == OUT_OF_REACH

    def met_by(self, value: Any) -> bool:
        """Return whether a value meets the criterion."""
        return bool(evaluate(self.check, value, self.target).passed)

    def neared_by(self, other: Any, value: Any) -> bool:
        """Return whether ``other``, with one thing changed, has gone half of the way from ours.

        It would meet the criterion if all its numbers went on, by at most as much again, or went
        back, as far as they have gone too far, by at most a third of their way from ``value``.
        """
        return any(self.met_by(_beyond(other, value, step / 25)) for step in range(-8, 26))

    @property
    def printed(self) -> float | None:
        """The paper's value, if it is one number."""
        try:
            return float(self.value)
        except ValueError:
            return None

    @property
    def reference(self) -> Any:
        """The paper's number(s) that ours are divided by; None if it prints none."""
        if self.record:
            return self.target
        return self.target if self.printed is None else self.printed


@functools.cache
def load(path: Path | None = None) -> dict[str, Claim]:
    """Return the claims by id, in the ledger's order.

    ``path`` is a ledger of your own, in place of ``data/claims.csv`` of the checkout or the wheel.

    Raises:
        ValueError: a row of it cannot be used; the message names it.
    """
    found = path or (_CHECKOUT if _CHECKOUT.exists() else _WHEEL)
    claims: dict[str, Claim] = {}
    reader = csv.DictReader(io.StringIO(read_text(found)), strict=True)
    try:
        if reader.fieldnames != (columns := [field.name for field in fields(Claim)]):
            raise ValueError(f"{found.name} must have the columns {', '.join(columns)}")
        for row in reader:
            claim = _claim(row, found)
            if claim.id in claims:
                raise ValueError(f"{found.name}: the id {claim.id} stands twice; rename one")
            claims[claim.id] = claim
    except csv.Error as error:
        raise ValueError(f"{found.name}, line {reader.line_num}: {error}") from None
    return claims


def _beyond(other: Any, value: Any, share: float) -> Any:
    """Return ``other`` moved on by a share of its way from ``value``; what is no number stays."""
    if isinstance(other, list) and isinstance(value, list):
        return [_beyond(b, a, share) for a, b in zip(value, other, strict=False)]
    return other + share * (other - value) if is_number(other) and is_number(value) else other


def _claim(row: dict[str, Any], path: Path) -> Claim:
    if None in row or None in row.values():
        raise ValueError(f"{path.name}, {row['id']}: the row has not one cell for each column")
    try:
        terms = parse(row["check"])
        target = from_json(row["target"]) if row["target"] else None
        if target is None and any(term.needs_target for term in terms):
            target = float(row["value"])
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path.name}, {row['id']}: {error}") from error
    return Claim(**{**row, "target": target})
