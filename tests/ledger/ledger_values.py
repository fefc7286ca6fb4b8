"""Values that meet a claim's criterion, and values that clearly do not."""

from typing import Any

from pipekit.ledger.criteria import Bound, Term, parse
from pipekit.ledger.ledger import Claim

FAR = 1e12  # further from anything than any criterion allows


def right(claim: Claim) -> Any:
    """Return a value that meets all of a claim's conditions at once, from its target and bounds."""
    terms = parse(claim.check)
    words = {term.word for term in terms}
    if "holds" in words:
        return True
    if words & {"equal", "report"}:
        return 1 if claim.target is None else claim.target
    size = _size(claim, terms)
    if size is None:
        return _inside(0, claim.target, terms)
    values = [_inside(i, (claim.target or [None] * size)[i], terms) for i in range(size)]
    # Where nothing is said of a value but that it has its place in a row, put it there.
    for i, value in enumerate(values):
        if value is None:
            values[i] = _between(values, i, "decreasing" in words)
    return values


def wrongs(claim: Claim) -> list[tuple[str, Any]]:
    """Return, for each condition of a claim, a value that clearly misses that condition."""
    good = right(claim)
    return [(str(term), _wrong(term, good)) for term in parse(claim.check)]


def _size(claim: Claim, terms: tuple[Term, ...]) -> int | None:
    if isinstance(claim.target, list):
        return len(claim.target)
    for term in terms:
        if term.word == "values":
            return int(term.bounds[0])  # type: ignore[arg-type]  # one number, by its form
        for bound in term.bounds:
            if isinstance(bound, tuple):
                return len(bound)
    rows = {"increasing", "decreasing", "not decreasing"}
    return 3 if rows & {term.word for term in terms} else None


def _inside(i: int, target: float | None, terms: tuple[Term, ...]) -> float | None:
    if target is not None:
        return target
    low, high = None, None
    for term in terms:
        bounds = [_one(bound, i) for bound in term.bounds]
        if term.word in ("at least", "above", "between") and bounds[0] is not None:
            low = bounds[0]
        if term.word in ("at most", "below", "between") and bounds[-1] is not None:
            high = bounds[-1]
    rank = 1 + i / 100  # values of a row rise a little, within any bounds
    if any(term.word == "decreasing" for term in terms):
        rank = 2 - i / 100
    if low is not None and high is not None:
        return low + (high - low) * rank / 4
    if low is not None:
        return low + rank * max(abs(low), 1) / 100
    if high is not None:
        return high - (3 - rank) * max(abs(high), 1) / 100
    return None


def _one(bound: Bound, i: int) -> float | None:
    return bound[i] if isinstance(bound, tuple) else bound


def _between(values: list[Any], i: int, falling: bool) -> float:
    before = [(j, v) for j, v in enumerate(values[:i]) if v is not None]
    after = [(j, v) for j, v in enumerate(values) if j > i and v is not None]
    if before and after:
        (j, a), (k, b) = before[-1], after[0]
        return float(a + (b - a) * (i - j) / (k - j))
    sign = -1 if falling else 1
    if before:
        j, a = before[-1]
        return float(a + sign * (i - j))
    if after:
        k, b = after[0]
        return float(b - abs(b) / 2 * sign * (k - i))
    return float(sign * i)


def _wrong(term: Term, good: Any) -> Any:
    if term.word == "holds":
        return False
    if term.word == "values":
        return good[:-1]
    if term.word in ("increasing", "decreasing", "not decreasing", "same order"):
        return good[::-1]
    if term.word == "equal":
        return _shifted(good)
    away = -FAR if term.word in ("at least", "above") else FAR
    if not isinstance(good, list):
        return away
    limited = next(i for i in range(len(good)) if _one(term.bounds[0], i) is not None)
    return [away if i == limited else value for i, value in enumerate(good)]


def _shifted(good: Any) -> Any:
    if isinstance(good, list):
        return [_shifted(good[0]), *good[1:]]
    return f"{good}-1" if isinstance(good, str) else good + 1
