"""Searching for the largest thing that fits a memory."""

from bisect import bisect_left
from collections.abc import Callable


def largest_that_fits(fits: Callable[[int], bool], most: int | None = None) -> int:
    """Return the largest number that fits, up to ``most`` or found by doubling; 0 if 1 does not."""
    if most is None:
        most = 1
        while fits(most):
            most *= 2
    return bisect_left(range(1, most + 1), True, key=lambda number: not fits(number))
