"""What a claim must meet to pass: a small closed language, read and evaluated here.

A criterion is one of these, or several of the numeric ones joined by ``and``:

====================  ==========================================================================
``within 15%``        at most 15% of the target away from the target
``within 7``          at most 7 away from it, in the claim's unit
``at least 0.95``     also ``at most 2``, ``above 0``, ``below 1``
``between 0.8 1.2``   the ends included
``increasing``        a list of at least two numbers, each above the one before; also ``decreasing``
``not decreasing``    the same, and neighbours may be equal
``same order``        a list of numbers that rank as the target's do, without ties
``6 values``          a list of exactly six numbers
``equal``             the target: a text, a number (to a relative 1e-9), or a list of them
``holds``             literally True: a fact that the recording code found to be so
``report``            nothing can pass or fail, the value is only shown
====================  ==========================================================================

A bound is a number, or a list with one bound for each value, null where there is none:
``between [0, null] [1e-6, null] and above [null, 2]``.  A single bound holds for every value.
"""

import functools
import json
import math
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from operator import ge, gt, le, lt
from typing import Any

Bound = (
    float | tuple[float | None, ...]
)  # for all values, or one for each, None where there is none
RELATIVE, ABSOLUTE = 1e-9, 1e-12  # of numbers that are ``equal``: the rounding of floats, no more


@dataclass(frozen=True)
class Term:
    """One condition: its words, and the bounds that follow them."""

    word: str
    bounds: tuple[Bound, ...] = ()
    percent: bool = False

    @property
    def needs_target(self) -> bool:
        return self.word in ("within", "equal", "same order")

    def bounds_of(self, number: int) -> list[float | None]:
        """Return the bounds of the value's number at an index, from 0; None where it has none."""
        return [bound[number] if isinstance(bound, tuple) else bound for bound in self.bounds]

    def in_words(self, aim: str) -> str:
        """Return what must be true of a value, say "within 15 % of the paper's value".

        ``aim`` is what ``within``, ``equal`` and ``same order`` compare with.
        """
        if self.word in _PHRASES:
            return _PHRASES[self.word].format(aim)
        if self.word == "values":
            return f"{self.bounds[0]:g} values"
        sizes = [len(bound) for bound in self.bounds if isinstance(bound, tuple)]
        if not sizes:
            return self.limit_in_words(0, aim)
        limited = [n for n in range(min(sizes)) if any(b is not None for b in self.bounds_of(n))]
        return ", ".join(f"value {n + 1} {self.limit_in_words(n, aim)}" for n in limited)

    def limit_in_words(self, number: int, aim: str) -> str:
        """Return what it asks of the value's number at an index, say "between 0.8 and 1.2"."""
        shown = ["" if bound is None else f"{bound:.4g}" for bound in self.bounds_of(number)]
        match self.word, shown:
            case "between", [low, ""]:
                return f"at least {low}"
            case "between", ["", high]:
                return f"at most {high}"
            case "between", [low, high]:
                return f"between {low} and {high}"
            case "within", [limit]:
                return f"within {limit}{' %' * self.percent} of {aim}"
        return f"{self.word} {shown[0]}"


@dataclass(frozen=True)
class Verdict:
    """Whether a value passes (None: the criterion cannot say), and why it does not."""

    passed: bool | None
    why: str = ""


_EACH: dict[str, Callable[..., bool]] = {"at least": ge, "at most": le, "above": gt, "below": lt}
_NEIGHBOURS = {"increasing": lt, "decreasing": gt, "not decreasing": le}

_PHRASES = {
    "holds": "found to hold",
    "report": "nothing to pass: ours is only shown",
    "increasing": "each value above the one before",
    "decreasing": "each value below the one before",
    "not decreasing": "no value below the one before",
    "equal": "equal to {}",
    "same order": "ranked as {}",
}
"""Conditions without bounds, in words."""

_ALONE = ("holds", "report", "equal")

_BOUND = r"\[[^\]]*\]|[^\s\[\]%]+"
_FORMS = (
    re.compile(rf"(?P<word>within) (?P<a>{_BOUND})(?P<percent>%?)"),
    re.compile(rf"(?P<word>between) (?P<a>{_BOUND}) (?P<b>{_BOUND})"),
    re.compile(rf"(?P<word>{'|'.join(_EACH)}) (?P<a>{_BOUND})"),
    re.compile(r"(?P<a>\d+) (?P<word>values)"),
    re.compile(rf"(?P<word>same order|{'|'.join([*_NEIGHBOURS, *_ALONE])})"),
)


@functools.cache
def parse(text: str) -> tuple[Term, ...]:
    """Read a criterion; one that is not in the language of this module is a ValueError."""
    terms = tuple(_term(part.strip(), text) for part in text.split(" and "))
    if len(terms) > 1 and (alone := [term.word for term in terms if term.word in _ALONE]):
        raise ValueError(f"{alone[0]!r} must stand alone, not as in {text!r}")
    return terms


def evaluate(text: str, value: Any, target: Any = None) -> Verdict:
    """Judge a recorded JSON value; one of the wrong kind, say text for a number, does not pass.

    A list ``target`` may have None where nothing is compared. A ValueError: the criterion is not in
    the language, or lacks its target.
    """
    terms = parse(text)
    if target is None and any(term.needs_target for term in terms):
        raise ValueError(f"{text!r} needs a target to compare with")
    match terms[0].word, value:
        case "report", _:
            return Verdict(None)
        case ("holds", True) | ("holds", False):
            why = "" if value else "it does not hold"
        case "holds", _:
            why = f"{_show(value)} is not a truth value"
        case "equal", _:
            why = "" if _same(value, target) else f"{_show(value)} is not {_show(target)}"
        case _:
            why = "; ".join(_failures(terms, value, target))
    return Verdict(not why, why)


def _term(part: str, text: str) -> Term:
    for form in _FORMS:
        if match := form.fullmatch(part):
            found = match.groupdict()
            bounds = tuple(_bound(found[key], text) for key in "ab" if found.get(key))
            return Term(found["word"], bounds, bool(found.get("percent")))
    raise ValueError(
        f"{part!r} in the criterion {text!r} must be one of: within N, within N%, at least N, "
        f"at most N, above N, below N, between A B, increasing, decreasing, not decreasing, "
        f"same order, N values, equal, holds, report"
    )


def _bound(text: str, criterion: str) -> Bound:
    try:
        bound = json.loads(text)
    except json.JSONDecodeError:
        bound = None
    if is_number(bound):
        return float(bound)
    if isinstance(bound, list) and all(b is None or is_number(b) for b in bound):
        return tuple(None if b is None else float(b) for b in bound)
    raise ValueError(f"{text!r} in the criterion {criterion!r} must be a number or a list of them")


def is_number(value: Any) -> bool:
    """Return whether a value is a finite number, and no truth value."""
    is_plain = isinstance(value, int | float) and not isinstance(value, bool)
    return is_plain and abs(value) <= sys.float_info.max


def _same(value: Any, target: Any) -> bool:
    if isinstance(target, list):
        alike = isinstance(value, list) and len(value) == len(target)
        return alike and all(map(_same, value, target))
    if is_number(target):
        return is_number(value) and math.isclose(value, target, rel_tol=RELATIVE, abs_tol=ABSOLUTE)
    return type(value) is type(target) and bool(value == target)


def _failures(terms: Sequence[Term], value: Any, target: Any) -> list[str]:
    values = value if isinstance(value, list) else [value]
    if not values or not all(is_number(v) for v in values):
        return [f"{_show(value)} is not a number, nor a list of numbers"]
    targets: Sequence[Any] = [None] * len(values)
    if any(term.needs_target for term in terms):
        targets = target if isinstance(target, list) else [target]
        if len(values) != len(targets) or isinstance(value, list) != isinstance(target, list):
            several = isinstance(target, list)
            kind = f"a list of {len(targets)} numbers" if several else "one number"
            return [f"{_show(value)} is not {kind}"]
    return [why for term in terms if (why := _failure(term, values, targets))]


def _failure(term: Term, values: Sequence[float], targets: Sequence[Any]) -> str:
    """Return why the values do not meet the condition; an empty text if they do."""
    if term.word == "values":
        met = len(values) == term.bounds[0]
        return "" if met else f"{len(values)} numbers where {term.in_words('')} are asked for"
    if term.word == "same order":
        compared = (i for i, target in enumerate(targets) if target is not None)
        ranked = sorted(compared, key=lambda i: targets[i])
        met = all(values[i] < values[j] for i, j in pairwise(ranked))
        return "" if met else f"{_show(list(values))} does not rank as {_show(list(targets))}"
    if term.word in _NEIGHBOURS:
        rule = _NEIGHBOURS[term.word]
        met = len(values) > 1 and all(rule(a, b) for a, b in pairwise(values))
        return "" if met else f"{_show(list(values))} is not {term.word.replace('not ', 'non-')}"
    sizes = {len(bound) for bound in term.bounds if isinstance(bound, tuple)}
    if sizes - {len(values)}:
        return f"{len(values)} numbers where {min(sizes)} are asked for"
    for i, (value, target) in enumerate(zip(values, targets, strict=True)):
        match term.word, term.bounds_of(i):
            case "between", [low, high]:
                met = (low is None or value >= low) and (high is None or value <= high)
            case "within", [float(bound)] if target is not None:
                off = abs(value - target)
                met = off <= (bound / 100 * abs(target) if term.percent else bound)
            case word, [float(bound)] if word in _EACH:
                met = _EACH[word](value, bound)
            case _:
                met = True
        if not met:
            aim = f"{target:.4g}" if term.word == "within" else ""
            return f"{value:.4g} is not {term.limit_in_words(i, aim)}"
    return ""


def _show(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_show, value))}]"
    return f"{value:.4g}" if isinstance(value, float) else json.dumps(value, ensure_ascii=False)
