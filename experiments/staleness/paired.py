"""Two methods compared seed by seed: intervals, tests, and what many of them mean together."""

import math
from typing import NamedTuple

import pandas as pd
from scipy import stats

LEVEL = 0.05
"""The chance, over all comparisons of a table, that any is told where there is nothing to tell."""
COVERAGE = 0.95
"""Of an interval, taken alone."""


class Excess(NamedTuple):
    """A method's loss above another's: the mean of the differences over seeds, in nats.

    Attributes:
        seeds: how many both have.
        mean: over them.
        error: the mean's standard error; infinite for one seed, which says nothing of others.
    """

    seeds: int
    mean: float
    error: float

    @property
    def low(self) -> float:
        """The lower end of the interval of Student's t."""
        return self.mean - self._half

    @property
    def high(self) -> float:
        """The upper end of the interval."""
        return self.mean + self._half

    @property
    def p(self) -> float:
        """That of a two-sided t-test that there is no difference."""
        return min(1.0, 2 * min(self.p_above(0.0), self.p_below(0.0)))

    def p_above(self, bound: float) -> float:
        """Return p of a one-sided t-test that the mean is at least a bound; small: it is less."""
        if self.error in (0.0, math.inf):
            return float(self.error > 0 or self.mean >= bound)
        return float(stats.t.cdf((self.mean - bound) / self.error, self.seeds - 1))

    def p_below(self, bound: float) -> float:
        """Return p of a one-sided t-test that the mean is at most a bound; small: it is more."""
        return Excess(self.seeds, -self.mean, self.error).p_above(-bound)

    @property
    def _half(self) -> float:
        if self.seeds < 2:
            return math.inf
        return self.error * float(stats.t.ppf((1 + COVERAGE) / 2, self.seeds - 1))


def compare(differences: "pd.Series[float]") -> Excess:
    """Return what differences, one a seed, say of their mean."""
    seeds = len(differences)
    error = float(differences.std()) / math.sqrt(seeds) if seeds > 1 else math.inf
    return Excess(seeds, float(differences.mean()), error)


def holm(p: "pd.Series[float]") -> "pd.Series[float]":
    """Return p-values corrected for their number by Holm's method (1979).

    Of those that are then below a level, any is so by chance with that probability at most.
    """
    ordered = p.sort_values(kind="stable")
    left = pd.Series(range(len(p), 0, -1), index=ordered.index, dtype=float)
    return (ordered * left).cummax().clip(upper=1.0).reindex(p.index)
