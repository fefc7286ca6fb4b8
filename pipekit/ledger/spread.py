"""Whether a value that differs from run to run is clear of its criterion.

The *spread* is the interval in which the mean of another set of as many repeats lies with 95 %
probability, by Student's distribution; it is at least as wide as the method's known error.  If the
criterion lies within it, nothing is decided.
"""

import functools
import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import product
from statistics import stdev
from typing import Any

from pipekit.ledger.criteria import Term, evaluate, is_number, parse

Error = float | tuple[float, ...]
"""By what part of itself a number may be wrong; or that of each number of a list."""

CONFIDENCE = 0.95  # probability with which another set of repeats lies within the spread

_MOST_CORNERS = 5  # numbers of a list up to which all combinations of their points are tried


def half_width(repeats: Sequence[float]) -> float:
    """Return by how much the mean of as many other repeats may differ; 0 for one repeat."""
    n = len(repeats)
    if n < 2 or (deviation := stdev(repeats)) == 0:
        return 0.0
    # Two means of n draws each differ by a normal number of variance 2/n.
    return student(n - 1) * deviation * math.sqrt(2 / n)


@functools.cache
def student(freedom: int) -> float:
    """Return how far from 0 Student's variable is with CONFIDENCE (Abramowitz, Stegun 26.7.3)."""
    # Summed here, since scipy takes longer to load than all claims to be judged.

    def within(angle: float) -> float:
        cosine, odd = math.cos(angle), freedom % 2
        term, total = math.sin(angle) * cosine**odd, angle * odd
        for power in range(odd, freedom - 1, 2):
            total += term
            term *= (power + 1) / (power + 2) * cosine**2
        return total * 2 / math.pi if odd else total

    low, high = 0.0, math.pi / 2  # the variable is the tangent of these, times a root
    while low < (middle := (low + high) / 2) < high:
        low, high = (middle, high) if within(middle) < CONFIDENCE else (low, middle)
    return math.sqrt(freedom) * math.tan(low)


def spread(value: Any, repeats: Sequence[Any]) -> Any:
    """Return the half width of each number of a value, in its shape; None for what has none."""
    if isinstance(value, list):
        return [spread(v, [r[i] for r in repeats]) for i, v in enumerate(value)]
    if isinstance(value, bool | str) or not repeats:
        return None
    return half_width(repeats)


def decided(
    check: str, value: Any, repeats: Sequence[Any], target: Any = None, known_error: Error = 0.0
) -> bool:
    """Return whether a criterion says the same of a value everywhere in its spread.

    Truth values and texts have no spread: all repeats, of the value's shape, must be judged alike.
    """
    verdict = evaluate(check, value, target).passed
    others: Iterable[Any] = repeats
    if all(map(is_number, value if isinstance(value, list) else [value])):
        others = _within(parse(check), value, repeats, target, known_error)
    return all(evaluate(check, other, target).passed == verdict for other in others)


def shape(value: Any) -> Any:
    """Return a value with its kind in the place of each truth value, text and number."""
    if isinstance(value, list):
        return [*map(shape, value)]
    return float if is_number(value) else type(value)


def _within(
    terms: Sequence[Term], value: Any, repeats: Sequence[Any], target: Any, known_error: Error
) -> Iterator[Any]:
    """Yield values at the spread's edges and at bounds within; of long lists one number moves."""
    if not isinstance(value, list):
        alone = _within(terms, [value], [[repeat] for repeat in repeats], [target], known_error)
        yield from (moved for (moved,) in alone)
        return
    points = []
    limits = [target, *(bound for term in terms for bound in term.bounds)]
    for i, number in enumerate(value):
        aims = [x[i] if isinstance(x, list | tuple) and i < len(x) else x for x in limits]
        known = known_error[i] if isinstance(known_error, tuple) else known_error
        half = max(half_width([repeat[i] for repeat in repeats]), known * abs(number))
        inner = (float(a) for a in aims if isinstance(a, int | float) and abs(a - number) <= half)
        points.append(sorted({number - half, number, number + half, *inner}))
    if len(value) <= _MOST_CORNERS:
        yield from map(list, product(*points))
        return
    for i, each in enumerate(points):
        yield from ([*value[:i], point, *value[i + 1 :]] for point in each)
    yield [each[0] for each in points]
    yield [each[-1] for each in points]
