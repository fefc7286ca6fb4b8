"""A claim's criterion in plain words."""

from pipekit.ledger.criteria import Term, parse
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
    numbers = {len(bound) for bound in term.bounds if isinstance(bound, tuple)}
    if not numbers:
        return [term.in_words(term.bounds_of(0), aim)]
    each = [term.bounds_of(n) for n in range(min(numbers))]
    return [
        f"value {n} {term.in_words(bounds, aim)}"
        for n, bounds in enumerate(each, 1)
        if any(bound is not None for bound in bounds)
    ]
