"""What became of a claim: our value beside the paper's, and the verdict of its criterion."""

import sys
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, Field, model_validator
from pydantic.dataclasses import dataclass as checked_dataclass

from pipekit.ledger.criteria import evaluate, is_number, parse
from pipekit.ledger.ledger import REFUTATION, Claim
from pipekit.ledger.spread import Error, decided, shape, spread

OURS = ("measured", "emulated", "simulated", "exact")  # the labels that a value of ours may have
_STRENGTH = ("simulated", "emulated", "measured")


class Status(StrEnum):
    """What became of a claim, with a sign, the word by which it is counted, and the meaning.

    Only the first two count as decided.
    """

    PASS = "pass", "✔", "met", "our value meets the criterion, evaluated when this was written"
    MISS = "miss", "✘", "missed", "our value does not meet it"
    REFUTED = "refuted", "≠", "found false", "our value shows that the paper's statement is false"
    UNDECIDED = (
        "undecided",
        "≈",
        "undecided",
        "the criterion lies within the spread or error of ours",
    )
    INVALID = "invalid", "!", "invalid on this host", "emulations are too far from their simulation"
    REPORTED = "reported", "●", "only shown", "there is no criterion, or ours rests on the claim"
    PRESET = "preset", "=", "about the paper's own set-up", "no experiment of ours can confirm it"
    NOT_RUN = "not run", "○", "not run", "nothing was recorded"
    OUT_OF_REACH = "out of reach", "–", "out of reach here", "a value shown is a stand-in's"

    sign: str
    counted: str
    meaning: str

    def __new__(cls, value: str, sign: str, counted: str, meaning: str) -> "Status":
        status = str.__new__(cls, value)
        status._value_, status.sign, status.counted, status.meaning = value, sign, counted, meaning
        return status


BECOMES = "turned", "moved half of the way", "still missed", "still met", "broken"
TURNED, NEARED, STILL_MISSED, STILL_MET, BROKEN = BECOMES

CAUSE_UNKNOWN = "unknown"  # no experiment has turned the miss, nor moved it half of the way
CONTRADICTION = "the paper contradicts itself"  # it has another number, too


def _plain(value: Any) -> Any:
    """Return the value as JSON has it: arrays and tensors become lists, their scalars numbers."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, list | tuple):
        return [_plain(element) for element in value]
    if isinstance(value, float | int) and not abs(value) <= sys.float_info.max:
        raise ValueError(f"it is {value}: record a finite number, or nothing")
    if isinstance(value, bool | int | float | str):
        return value
    raise ValueError(
        f"it must be a number, a truth value, a text or a list of these, not a "
        f"{type(value).__name__}: record the figures that its criterion needs"
    )


Plain = Annotated[Any, BeforeValidator(_plain)]


@checked_dataclass(frozen=True)
class Cause:
    """What may make our value miss: our ``value``, of its ``label``, with that one thing changed.

    Claims that share a cause give it the same ``name``, say "the fitted bandwidth"; ``changed`` is
    what was done instead, say "the printed one".
    """

    name: str
    value: Plain
    label: str
    changed: str = ""


class Record(BaseModel, frozen=True):
    """A value that a notebook wrote for a claim; arguments of :func:`pipekit.claims.record`."""

    id: str
    value: Plain
    repeats: tuple[Plain, ...] = ()
    invalid: str = ""
    shown: str = ""
    shown_only: str = ""
    causes: tuple[Cause, ...] = ()
    contradiction: str = ""
    known_error: Error = 0.0
    note: str = ""
    figure: str | None = None
    provenance: dict[str, Any]
    folder: Path = Field(default=Path(), exclude=True)

    @model_validator(mode="after")
    def _is_whole(self) -> "Record":
        labels = [self.provenance.get("label"), *(cause.label for cause in self.causes)]
        if not all(label in OURS for label in labels):  # which a damaged file makes a list, say
            raise ValueError(f"each label must be one of {', '.join(OURS)}, not {labels}")
        if not isinstance(self.provenance.get("utc"), str):
            raise ValueError("its provenance says no time, 'utc'")
        if any(shape(repeat) != shape(self.value) for repeat in self.repeats):
            raise ValueError(f"the repeats must be of the same shape as its value, {self.value}")
        return self

    @property
    def label(self) -> str:
        """What kind of number the value is: measured, emulated, simulated or exact."""
        return str(self.provenance["label"])


@dataclass(frozen=True, repr=False)
class Outcome:
    """A claim, our record of it (None: nobody recorded one), its status and the reason for it."""

    claim: Claim
    record: Record | None
    status: Status
    why: str

    @property
    def ours(self) -> str:
        """Our value as text, with its spread if it was repeated."""
        if self.record is None:
            return ""
        values, repeats = self.record.value, self.record.repeats
        if len(repeats) < 2:
            return show(values)
        halves = spread(values, repeats)
        if not isinstance(values, list):
            values, halves = [values], [halves]
        return ", ".join(map(_show_spread, values, halves))

    @property
    def ratio(self) -> str:
        """Ours over the paper's, as text; empty where the paper prints no such number."""
        reference, value = self.claim.reference, self.record and self.record.value
        if isinstance(value, list) and isinstance(reference, list):
            ratios = [_ratio(v, r) for v, r in zip(value, reference, strict=False)]
            return ", ".join(ratio or "–" for ratio in ratios) if any(ratios) else ""
        return _ratio(value, reference)

    @property
    def label_note(self) -> str:
        """A remark where our value is of a weaker kind than the claim wants; else empty."""
        if self.record is None or self.claim.out_of_reach or self.claim.preset:
            return ""
        wanted, ours = self.claim.label, self.record.label
        return f"wanted {wanted}, ours {ours}" if weaker(ours, wanted) else ""

    @property
    def cause(self) -> str:
        """What makes a miss miss: the first cause whose change meets the claim's criterion.

        Else it is :data:`CONTRADICTION` where the paper has two numbers; or the first cause whose
        change moves ours at least half of the way, or :data:`CAUSE_UNKNOWN`.
        """
        if self.record is None or self.status is not Status.MISS:
            return ""
        met, causes, ours = self.claim.met_by, self.record.causes, self.record.value
        if turning := next((cause.name for cause in causes if met(cause.value)), ""):
            return turning
        nearing = (cause.name for cause in causes if self.claim.neared_by(cause.value, ours))
        return CONTRADICTION if self.record.contradiction else next(nearing, CAUSE_UNKNOWN)

    def tried(self, name: str = "") -> list[tuple[Cause, str]]:
        """Each change (of one cause's ``name``) tried on a decided claim, and what it BECOMES."""
        if self.record is None or self.status not in (Status.PASS, Status.MISS):
            return []
        causes = [cause for cause in self.record.causes if name in ("", cause.name)]
        return [(cause, self._becomes(cause.value)) for cause in causes]

    def _becomes(self, other: Any) -> str:
        assert self.record is not None
        if self.claim.met_by(other):
            return TURNED if self.status is Status.MISS else STILL_MET
        if self.status is Status.PASS:
            return BROKEN
        return NEARED if self.claim.neared_by(other, self.record.value) else STILL_MISSED

    @property
    def passes_if(self) -> str:
        """The claim's criterion in words, say "within 15 % of the paper's value; above 1"."""
        claim = self.claim
        papers = claim.target is None or claim.target == claim.printed
        papers = papers or str(claim.target) == claim.value
        aim = "the paper's value" if papers else show(claim.target)
        return "; ".join(term.in_words(aim) for term in parse(claim.check))

    def __repr__(self) -> str:
        unit = "" if self.claim.record else f" {self.claim.unit}"
        parts = [f"paper {self.claim.value} {self.claim.unit}".strip()]
        if self.record is not None:
            parts.append(f"ours {self.record.shown or self.ours + unit} ({self.record.label})")
        if self.ratio:
            parts.append(f"ratio {self.ratio}")
        parts += filter(None, [self.label_note, f"criterion: {self.claim.check}", self.why])
        if self.cause not in ("", CAUSE_UNKNOWN):
            parts.append(f"cause: {self.cause}")
        return f"{self.status.value}: {self.claim.id}: {'; '.join(parts)}"


def weaker(label: str, wanted: str) -> bool:
    """Return whether a number is of a weaker kind than wanted: simulated, emulated, measured."""
    if label in _STRENGTH and wanted in _STRENGTH:
        return _STRENGTH.index(label) < _STRENGTH.index(wanted)
    return label != wanted  # exact stands apart


def judge(claim: Claim, record: Record | None) -> Outcome:
    """Return what becomes of a claim, computed from the recorded value and nothing else."""
    return Outcome(claim, record, *_judged(claim, record))


def _judged(claim: Claim, record: Record | None) -> tuple[Status, str]:
    if claim.preset:
        return Status.PRESET, claim.preset
    if claim.out_of_reach:
        return Status.OUT_OF_REACH, "; ".join(filter(None, [claim.tolerance, claim.note]))
    if record is None:
        return Status.NOT_RUN, "no notebook has recorded a value"
    if record.invalid:
        return Status.INVALID, record.invalid
    if record.shown_only:
        return Status.REPORTED, record.shown_only
    verdict = evaluate(claim.check, record.value, claim.target)
    if verdict.passed is None:
        return Status.REPORTED, "no criterion: ours is only shown"
    if not decided(claim.check, record.value, record.repeats, claim.target):
        why = f"the criterion lies within the spread of {len(record.repeats)} repeats"
    elif not decided(claim.check, record.value, (), claim.target, record.known_error):
        known = record.known_error
        largest = max(known) if isinstance(known, tuple) else known
        why = f"the criterion lies within the value's known error, {largest:.1%}"
    else:
        if verdict.passed and claim.kind == REFUTATION:
            return Status.REFUTED, ""
        return Status.PASS if verdict.passed else Status.MISS, verdict.why
    return Status.UNDECIDED, "; ".join(filter(None, [why, verdict.why]))


def show(value: Any) -> str:
    """Return a recorded value as text, numbers with four significant digits."""
    match value:
        case None:
            return "–"  # of a list: nothing is compared there
        case bool():
            return "yes" if value else "no"
        case int():
            return f"{value:,}"
        case float():
            if 0 < abs(value) < 1e-7:  # than the rounding of float32
                return "<1e-7"
            return f"{value:,.0f}" if 1e4 <= abs(value) < 1e7 else f"{value:z.4g}"
        case list():
            return ", ".join(f"[{show(v)}]" if isinstance(v, list) else show(v) for v in value)
    return str(value)


def _ratio(value: Any, reference: Any) -> str:
    numbers = is_number(value) and is_number(reference) and reference
    return f"{value / reference:.3g}" if numbers else ""


def _show_spread(value: Any, half_width: Any) -> str:
    varies = isinstance(half_width, float) and half_width > 1e-9 * abs(value)  # more than rounding
    return f"{show(value)} ± {half_width:.2g}" if varies else show(value)
