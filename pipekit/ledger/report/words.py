"""A claim's criterion in plain words."""

from pipekit.ledger.criteria import Bound, Term, parse
from pipekit.ledger.ledger import Claim
from pipekit.ledger.outcomes import show

_PHRASES = {
    "holds": "found to hold",
    "report": "nothing to pass: ours is only shown",
    "increasing": "each value above the one before",
    "decreasing": "each value below the one before",
    "not decreasing": "no value below the one before",
}


def in_words(claim: Claim) -> str:
    """Return what must be true of our value, say "within 15 % of the paper's value; above 1"."""
    return "; ".join(_term(term, _aim(claim)) for term in parse(claim.check))


def _aim(claim: Claim) -> str:
    """Return what our value is compared with."""
    its_own = claim.target is None or str(claim.target) == claim.value or _is(claim)
    return "the paper's value" if its_own else show(claim.target)


def _is(claim: Claim) -> bool:
    try:
        return bool(float(claim.value) == claim.target)
    except ValueError:
        return False


def _term(term: Term, aim: str) -> str:
    if term.word in _PHRASES:
        return _PHRASES[term.word]
    if term.word == "values":
        return str(term)
    if term.word == "equal":
        return f"equal to {aim}"
    if term.word == "same order":
        return f"ranked as {aim}"
    return ", ".join(_each(term, aim))


def _each(term: Term, aim: str) -> list[str]:
    """Return a bound's words, once for all values or for each value that has one."""
    lists = [bound for bound in term.bounds if isinstance(bound, tuple)]
    if not lists:
        return [_bounded(term, list(term.bounds), aim)]
    phrases = []
    for n in range(len(lists[0])):
        bounds = [bound[n] if isinstance(bound, tuple) else bound for bound in term.bounds]
        if any(bound is not None for bound in bounds):
            phrases.append(f"value {n + 1} {_bounded(term, bounds, aim)}")
    return phrases


def _bounded(term: Term, bounds: list[Bound] | list[float | None], aim: str) -> str:
    shown = [f"{bound:g}" if isinstance(bound, float) else "" for bound in bounds]
    if term.word == "between":
        low, high = shown
        if low and high:
            return f"between {low} and {high}"
        return f"at least {low}" if low else f"at most {high}"
    (limit,) = shown
    if term.word == "within":
        return f"within {limit}{' %' if term.percent else ''} of {aim}"
    return f"{term.word} {limit}"
