"""A class of fault as gradients that add up to a trainer's, with factors that name it.

The factors are read off the trainer's own values by least squares; with them every element of a
parameter must be within the tolerance in every step.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

from pipekit.parity.evidence import Basis, Evidence, Factors, Prediction
from pipekit.parity.observed import Entry
from pipekit.parity.plain_loop import Pass, Tensors

SAME = 2e-3  # difference of two factors that count as one, relative above 1
NOTHING = 0.01  # a factor as small as this is none

Fits = dict[int, Factors]
"""The factors that explain wrong entries, by their numbers."""
Said = tuple[str, str, frozenset[int]]
"""A class of fault, what about this one, and the numbers of the entries that it explains."""


@dataclass(frozen=True)
class Known:
    """What explains some of the wrong entries; ``behind``: the most updates they are stale by."""

    fault: str
    said: str
    covers: frozenset[int]
    behind: int = 0


@dataclass(frozen=True)
class Hypothesis:
    """Gradients that may add up to the trainer's, and what their factors are called.

    Attributes:
        basis: the gradients of each step, each for all parameters that it is about.
        named: the classes of factors.
        beside: a prediction that counts once in any case.
        behind: the most updates by which gradients are stale.
        together: whether all entries, else those of a layer, have the same factors.
        rough: whether a prediction need only be near.
    """

    basis: Basis
    named: Callable[[Fits], Iterator[Said]]
    beside: Prediction | None = None
    behind: int = 0
    together: bool = False
    rough: bool = False

    def known(self, e: Evidence) -> list[Known]:
        """Return what this explains."""
        basis = cache(self.basis)
        about = [n for n in e.wrong if all(n.name in gradients for gradients in basis(e.steps - 1))]
        fits = self._fits(e, basis, about) if self.together else {}
        groups: dict[Any, list[Entry]] = {}
        for entry in about if len(fits) < len(about) else ():
            layer = entry.rank, e.loop.layer(entry.name)
            groups.setdefault(layer if self.together else id(entry), []).append(entry)
        for group in groups.values():
            fits |= self._fits(e, basis, group)
        return [Known(*said, self.behind) for said in self.named(fits)]

    def _fits(self, e: Evidence, basis: Basis, entries: list[Entry]) -> Fits:
        last = range(e.steps - 1, e.steps)
        for steps in (last, range(e.steps)):  # one step rules out most, at a part of the cost
            factors, near = e.fitted(entries, basis, self.beside, self.rough, steps)
            if factors is not None and not near:
                return {}
        numbers = {id(entry): number for number, entry in enumerate(e.wrong)}
        return {numbers[id(entry)]: factors for entry in near} if factors is not None else {}


def same(one: float, other: float) -> bool:
    """Return whether two factors are one."""
    return abs(one - other) <= SAME * max(abs(one), abs(other), 1e-9)


def alike(fits: Fits, least: float = 1.0) -> list[tuple[Factors, frozenset[int]]]:
    """Return the different factors, and the numbers of the entries that have them.

    Below ``least`` factors differ by as much as there.
    """
    groups: list[tuple[Factors, list[int]]] = []
    for number, factors in fits.items():
        for known, numbers in groups:
            pairs = zip(known, factors, strict=True)
            if all(abs(a - b) <= SAME * max(least, abs(a)) for a, b in pairs):
                numbers.append(number)
                break
        else:
            groups.append((factors, [number]))
    return [(factors, frozenset(numbers)) for factors, numbers in groups]


def each(name: Callable[[Factors], Iterator[tuple[str, str]]]) -> Callable[[Fits], Iterator[Said]]:
    """Return what names entries by their factors alone."""
    return lambda fits: (
        (*said, numbers) for factors, numbers in alike(fits) for said in name(factors)
    )


def times(fault: str, said: str) -> Callable[[Fits], Iterator[Said]]:
    """Return what names the multiples of one prediction."""

    def name(factors: Factors) -> Iterator[tuple[str, str]]:
        (factor,) = factors
        if abs(factor) > NOTHING:
            yield fault, said if same(factor, 1.0) else f"{said}, x {factor:.4g}"

    return each(name)


def passing(
    e: Evidence, fault: str, said: str, like: Callable[[int], Pass], behind: int = 0
) -> Hypothesis:
    """Return the hypothesis that each step runs such a pass, in place of the right one."""

    def predicted(step: int) -> list[Tensors]:
        parts = e.parts(step) if e.loop.case.coupled else [like(step).rows]
        return [e.loop.weighted(like(step).step, parts, like(step))]

    return Hypothesis(predicted, times(fault, said), behind=behind, together=True)
