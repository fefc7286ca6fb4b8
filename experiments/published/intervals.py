"""80 % intervals by the conformal rule (Lei et al., Distribution-Free Predictive Inference for
Regression, JASA 2018, section 2.2), on the logarithms of measured / predicted of held-out folds."""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from statistics import median

from pipekit.performance.constants import UNKNOWN

COVERAGE = 0.8
_FEWEST = 20
"""Rows that a class needs for an interval of its own; it has its set's else."""

Residual = tuple[str, str, float]
"""A row's set, its class, and log(measured / predicted)."""


def half_widths(residuals: Iterable[Residual]) -> dict[str, dict[str, float]]:
    """Return by set and class the half width of log(measured / predicted)."""
    by_set: dict[str, list[float]] = defaultdict(list)
    by_kind: dict[tuple[str, str], list[float]] = defaultdict(list)
    for name, kind, residual in residuals:
        if kind != UNKNOWN:
            by_set[name].append(abs(residual))
        by_kind[name, kind].append(abs(residual))
    found: dict[str, dict[str, float]] = defaultdict(dict)
    for (name, kind), own in by_kind.items():
        alone = kind == UNKNOWN or len(own) >= _FEWEST
        found[name][kind] = _quantile(own if alone else by_set[name])
    return dict(found)


def half_width(widths: Mapping[str, Mapping[str, float]], name: str, kind: str) -> float:
    """Return the half width of a set's class: of an unseen class its set's widest, which unknown
    rows have at least, and of a set without rows the median of all.
    """
    known = {
        each: [half for kind, half in own.items() if kind != UNKNOWN]
        for each, own in widths.items()
    }
    if name not in widths:
        return median(half for own in known.values() for half in own)
    widest = max(known[name])
    half = widths[name].get(kind, widest)
    return max(half, widest) if kind == UNKNOWN else half


def _quantile(sizes: list[float]) -> float:
    """Return the size that the next one is below with the wanted probability, at least."""
    rank = math.ceil(COVERAGE * (len(sizes) + 1))
    return sorted(sizes)[min(rank, len(sizes)) - 1]
