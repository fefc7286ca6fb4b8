"""A class of fault as gradients that add up to a trainer's, with factors that name it.

The factors are read off the trainer's own values by least squares; with them every element of a
parameter must be within the tolerance in every step.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import groupby

import torch
from torch import Tensor

from pipekit.parity.observed import Entry, Observed
from pipekit.parity.plain_loop import Tensors, along
from pipekit.parity.verdict import TOLERANCE, Fault, Finding

SAME = 2e-3  # difference of two factors that count as one, relative above 1
NOTHING = 0.01  # a factor as small as this is none
OVERDETERMINED = 4  # numbers for each factor, at least
DEPENDENT = 3e-5  # share of the largest singular value, below which gradients are no basis
ROUGHLY = 0.01  # of a gradient's size: bfloat16 keeps eight bits

Basis = Callable[[int], Sequence[Tensors]]
"""Gradients by step that count so many times each."""
Factors = tuple[float, ...]
Fits = dict[Entry, Factors]
Named = Iterator[tuple[str, str]]
"""Classes of fault, and what about them."""


@dataclass(frozen=True)
class Known:
    """What explains some of the wrong entries; ``behind``: the most updates they are stale by."""

    fault: str
    said: str
    covers: frozenset[Entry]
    behind: int = 0


@dataclass(frozen=True)
class Hypothesis:
    """Gradients that may add up to the trainer's, and what their factors are called."""

    basis: Basis  # the gradients of each step, each for all parameters that it is about
    named: Callable[[Fits], Iterator[Known]]  # what the factors mean
    together: bool = False  # whether all entries, else those of a layer, have the same factors
    each_step: bool = False  # whether each step has factors of its own, one after the other
    rough: bool = False  # whether a prediction need only be near
    first: int = 0  # the step from which it is compared

    def known(self, e: Observed) -> list[Known]:
        """Return what this explains."""
        basis = cache(self.basis)
        about = [n for n in e.wrong if all(n.name in g for g in basis(e.steps - 1))]
        if not about or self.first >= e.steps:
            return []
        fits = self._fits(e, basis, about) if self.together else {}
        if len(fits) < len(about):
            by: Callable[[Entry], object] = (lambda n: n.layer) if self.together else id
            groups: dict[object, list[Entry]] = {}
            for entry in about:
                groups.setdefault(by(entry), []).append(entry)
            for group in groups.values():
                fits |= self._fits(e, basis, group)
        return list(self.named(fits))

    def _fits(self, e: Observed, basis: Basis, entries: list[Entry]) -> Fits:
        steps = range(self.first, e.steps)
        if not self.each_step:
            factors, near = self._fitted(e, basis, entries, steps[-1:])
            if near or not factors:  # the last step rules out most, at a part of the cost
                factors, near = self._fitted(e, basis, entries, steps)
            return dict.fromkeys(near, factors)
        of_steps: Factors = ()
        for step in reversed(steps):
            factors, entries = self._fitted(e, basis, entries, [step])
            if not entries:
                return {}
            of_steps = factors + of_steps
        return dict.fromkeys(entries, of_steps)

    def _fitted(
        self, e: Observed, basis: Basis, entries: list[Entry], steps: Sequence[int]
    ) -> tuple[Factors, list[Entry]]:
        """Return factors, alike in these steps, and the entries that are explained by them.

        There are none of either if the entries do not determine the factors.
        """
        found = {n: [_columns(n, s, basis(s)) for s in steps] for n in entries}
        pairs = [pair for of in found.values() for pair in of]
        matrix, wanted = (torch.cat(each) for each in zip(*pairs, strict=True))
        solved = torch.linalg.lstsq(matrix, wanted[:, None], rcond=DEPENDENT, driver="gelsd")
        factors, size = solved.solution[:, 0], matrix.shape[1]
        if len(matrix) < OVERDETERMINED * size or solved.rank < size:
            return (), []

        def fits(entry: Entry) -> bool:
            added = [(columns @ factors, value) for columns, value in found[entry]]
            if self.rough:
                return all((a - b).norm() <= ROUGHLY * b.norm() for a, b in added)
            ulps = (e.ulps(s, entry.name, *pair) for s, pair in zip(steps, added, strict=True))
            return all(off <= TOLERANCE for off in ulps)

        return tuple(factors.tolist()), [entry for entry in entries if fits(entry)]


def _columns(entry: Entry, step: int, basis: Sequence[Tensors]) -> tuple[Tensor, Tensor]:
    columns = [gradients[entry.name].flatten() for gradients in basis]
    return torch.stack(columns, 1), entry.values[step].flatten()


def same(one: float, other: float) -> bool:
    """Return whether two factors are one."""
    return abs(one - other) <= SAME * max(abs(one), abs(other), 1e-9)


def constant(factors: Sequence[float]) -> bool:
    """Return whether factors are the same."""
    return all(same(factor, factors[0]) for factor in factors)


def alike(fits: Fits, least: float = 1.0) -> list[tuple[Factors, frozenset[Entry]]]:
    """Return the different factors, and the entries that have them.

    Below ``least`` factors differ by as much as there.
    """
    groups: list[tuple[Factors, list[Entry]]] = []
    for entry, factors in fits.items():
        for known, entries in groups:
            pairs = zip(known, factors, strict=True)
            if all(abs(a - b) <= SAME * max(least, abs(a)) for a, b in pairs):
                entries.append(entry)
                break
        else:
            groups.append((factors, [entry]))
    return [(factors, frozenset(entries)) for factors, entries in groups]


def each(name: Callable[[Factors], Named]) -> Callable[[Fits], Iterator[Known]]:
    """Return what names entries by their factors alone."""
    return lambda fits: (
        Known(*named, entries) for factors, entries in alike(fits) for named in name(factors)
    )


def times(fault: str, said: str, behind: int = 0) -> Callable[[Fits], Iterator[Known]]:
    """Return what names the multiples of one prediction."""

    def name(fits: Fits) -> Iterator[Known]:
        for (factor,), entries in alike(fits):
            if abs(factor) > NOTHING:
                shown = said if same(factor, 1.0) else f"{said}, x {factor:.4g}"
                yield Known(fault, shown, entries, behind)

    return name


Source = Callable[[Observed], Iterator[Hypothesis]]


def explained(e: Observed, simplest_first: Iterable[Iterable[Source]]) -> list[Finding]:
    """Return one finding for each group of wrong entries that have a common explanation.

    A later group of sources is asked if no earlier one explains all.
    """
    known: list[list[Known]] = []
    for sources in simplest_first if e.wrong else ():
        known.append([k for source in sources for h in source(e) for k in h.known(e)])
        if any(len(k.covers) == len(e.wrong) for k in known[-1]):
            break
    left, findings = set(e.wrong), list[Finding]()
    while left:
        most = max((len(k.covers & left) for group in known for k in group), default=0)
        if not most:
            return [*findings, _unexplained(e, [entry for entry in e.wrong if entry in left])]
        group = next(g for g in known if any(len(k.covers & left) == most for k in g))
        best = [k for k in group if len(k.covers & left) == most]
        covered = best[0].covers & left
        findings.append(_finding(e, [k for k in best if k.covers & left == covered], covered))
        left -= covered
    return findings


def _finding(e: Observed, alike: list[Known], covered: frozenset[Entry]) -> Finding:
    stale = [k for k in alike if 0 < k.behind <= e.stated.stale]
    chosen: dict[str, str] = {}
    for one in stale or alike:
        chosen.setdefault(one.fault, one.said)
    names = tuple(dict.fromkeys(entry.name for entry in e.wrong if entry in covered))
    return Finding(tuple(chosen), tuple(chosen.values()), names, excused=bool(stale))


def _unexplained(e: Observed, entries: list[Entry]) -> Finding:
    """Return how far the first update is from the right one, for want of better."""
    value = torch.cat([entry.values[0].flatten() for entry in entries])
    right = torch.cat([e.right(0)[entry.name].flatten() for entry in entries])
    said = "where the plain loop has no gradient"
    if right.any():
        off = float((value - right).norm() / right.norm())
        said = f"the first update is x {along(value, right):.4g} along the right one, {off:.2%} off"
    return Finding((Fault.UNKNOWN,), (said,), tuple(dict.fromkeys(n.name for n in entries)))


def shown(factors: Sequence[float]) -> str:
    """Return factors in words; runs of one are counted."""
    runs = [
        (value, len([*run])) for value, run in groupby(f"{round(f, 2) + 0.0:.2f}" for f in factors)
    ]
    return ", ".join(f"{n} x {value}" if n > 4 else ", ".join([value] * n) for value, n in runs)
