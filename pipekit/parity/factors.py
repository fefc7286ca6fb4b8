"""Factors by which gradients count: when two of them are one, and how they are named."""

from collections.abc import Sequence
from itertools import groupby

SAME = 2e-3  # difference of two factors that count as one, relative above 1
NOTHING = 0.01  # a factor as small as this is none, beside others that are about 1
LEAST = 1e-6  # likewise, a factor of all

Factors = tuple[float, ...]


def same(one: float, other: float) -> bool:
    """Return whether two factors are one."""
    return abs(one - other) <= SAME * max(abs(one), abs(other), 1e-9)


def whole(factors: Sequence[float]) -> list[int]:
    """Return factors as whole numbers; none, if they are not."""
    counts = [round(factor) for factor in factors]
    near = all(abs(a - b) < NOTHING for a, b in zip(factors, counts, strict=True))
    return counts if near else []


def constant(factors: Sequence[float]) -> bool:
    """Return whether factors are the same."""
    return all(same(factor, factors[0]) for factor in factors)


def shown(factors: Sequence[float]) -> str:
    """Return factors in words; runs of one are counted."""
    runs = groupby(f"{round(factor, 2) + 0.0:.2f}" for factor in factors)
    counts = [(value, len([*run])) for value, run in runs]
    return ", ".join(f"{n} x {value}" if n > 4 else ", ".join([value] * n) for value, n in counts)
