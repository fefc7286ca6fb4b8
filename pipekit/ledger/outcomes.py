"""What became of a claim: our value beside the paper's, and the verdict of its criterion."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from pipekit.ledger.criteria import evaluate
from pipekit.ledger.ledger import Claim

_STRENGTH = ("simulated", "emulated", "measured")


class Status(StrEnum):
    """What a claim's criterion says of our value."""

    PASS = "pass"
    MISS = "miss"
    REPORTED = "reported"
    NOT_RUN = "not run"
    OUT_OF_REACH = "out of reach"


@dataclass(frozen=True)
class Record:
    """A value that a notebook wrote for a claim.

    ``folder`` is the notebook's folder of results, in which ``figure`` names a file; ``provenance``
    is a record of :func:`pipekit.provenance.provenance`.
    """

    id: str
    value: Any
    note: str
    figure: str | None
    provenance: dict[str, Any]
    folder: Path

    @property
    def label(self) -> str:
        """What kind of number the value is: measured, emulated, simulated or exact."""
        return str(self.provenance["label"])

    @property
    def notebook(self) -> str:
        """The name of the notebook: the batch runner gives each a folder of its name."""
        return self.folder.name


@dataclass(frozen=True, repr=False)
class Outcome:
    """A claim, our record of it (None: nobody recorded one), its status and the reason for it."""

    claim: Claim
    record: Record | None
    status: Status
    why: str

    @property
    def ours(self) -> str:
        """Our value as text."""
        return "" if self.record is None else show(self.record.value)

    @property
    def ratio(self) -> str:
        """Ours over the paper's, as text; empty where the paper prints no such number."""
        if self.record is None:
            return ""
        reference, value = self.claim.reference, self.record.value
        if isinstance(value, list) and isinstance(reference, list):
            ratios = [_ratio(v, r) for v, r in zip(value, reference, strict=False)]
            return ", ".join(ratio or "–" for ratio in ratios) if any(ratios) else ""
        return _ratio(value, reference)

    @property
    def label_note(self) -> str:
        """A remark where our value is of a weaker kind than the claim wants; else empty."""
        if self.record is None or self.claim.out_of_reach:
            return ""
        wanted, ours = self.claim.label, self.record.label
        return f"wanted {wanted}, ours {ours}" if weaker(ours, wanted) else ""

    def __repr__(self) -> str:
        unit = "" if self.claim.record else f" {self.claim.unit}"
        parts = [f"paper {self.claim.value} {self.claim.unit}".strip()]
        if self.record is not None:
            parts.append(f"ours {self.ours}{unit} ({self.record.label})")
        if self.ratio:
            parts.append(f"ratio {self.ratio}")
        parts += filter(None, [self.label_note, f"criterion: {self.claim.check}", self.why])
        return f"{self.status.value}: {self.claim.id}: {'; '.join(parts)}"


def weaker(label: str, wanted: str) -> bool:
    """Return whether a number is of a weaker kind than wanted.

    Measured is stronger than emulated, and emulated than simulated.  Exact stands apart: neither
    replaces the other.
    """
    if label in _STRENGTH and wanted in _STRENGTH:
        return _STRENGTH.index(label) < _STRENGTH.index(wanted)
    return label != wanted


def judge(claim: Claim, record: Record | None) -> Outcome:
    """Return what becomes of a claim, computed from the recorded value and nothing else."""
    if claim.out_of_reach:
        why = "; ".join(filter(None, [claim.tolerance, claim.note]))
        return Outcome(claim, record, Status.OUT_OF_REACH, why)
    if record is None:
        return Outcome(claim, None, Status.NOT_RUN, "no notebook has recorded a value")
    verdict = evaluate(claim.check, record.value, claim.target)
    if verdict.passed is None:
        return Outcome(claim, record, Status.REPORTED, "no criterion: ours is only shown")
    return Outcome(claim, record, Status.PASS if verdict.passed else Status.MISS, verdict.why)


def counts(outcomes: Iterable[Outcome]) -> dict[str, dict[Status, int]]:
    """Return, for each paper in order, how many claims have each status."""
    table: dict[str, dict[Status, int]] = {}
    for outcome in outcomes:
        table.setdefault(outcome.claim.paper, dict.fromkeys(Status, 0))[outcome.status] += 1
    return table


def show(value: Any) -> str:
    """Return a recorded value as text, numbers with four significant digits."""
    match value:
        case bool():
            return "yes" if value else "no"
        case int():
            return f"{value:,}"
        case float():
            return f"{value:,.0f}" if 1e4 <= abs(value) < 1e7 else f"{value:.4g}"
        case list():
            return ", ".join(f"[{show(v)}]" if isinstance(v, list) else show(v) for v in value)
    return str(value)


def _ratio(value: Any, reference: Any) -> str:
    numbers = all(
        isinstance(x, int | float) and not isinstance(x, bool) for x in (value, reference)
    )
    return f"{value / reference:.3g}" if numbers and reference else ""
