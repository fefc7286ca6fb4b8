"""A class of fault as gradients that add up to a trainer's, with factors that name it.

The factors are read off the trainer's own values by least squares; with them every element of a
parameter must be within the tolerance in every step.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain
from math import isclose
from typing import Any

import torch
from torch import Tensor

from pipekit.parity.factors import NOTHING, SAME, Factors, same
from pipekit.parity.observed import Entry, Observed
from pipekit.parity.plain_loop import Tensors, along
from pipekit.parity.verdict import LOSS, TOLERANCE, Fault, Finding

OVERDETERMINED = 4  # numbers for each factor, at least
DEPENDENT = 3e-5  # share of the largest singular value, below which gradients are no basis
ROUGHLY = 0.02  # of a gradient's size: bfloat16 keeps eight bits, and errors of layers add up

Predicted = Callable[[int], Tensors]  # gradients by step
Basis = Callable[[int], Sequence[Tensors]]  # gradients by step that count so many times each
Fits = dict[Entry, Factors]
Named = Iterable[tuple[str, str]]  # classes of fault, and what about them


@dataclass(frozen=True)
class Known:
    """What explains some of the wrong entries; ``behind``: the most updates they are stale by."""

    fault: str
    said: str
    covers: frozenset[Entry]
    behind: int = 0


Source = Callable[[Observed], Iterable[Known]]


def fit(
    e: Observed,
    basis: Basis,
    *,
    together: bool = False,  # all entries, else those of a layer, have the same factors
    each_step: bool = False,  # each step has factors of its own, one after the other
    rough: bool = False,  # a sum need only be near
    first: int = 0,  # the step from which it is compared
) -> Fits:
    """Return the wrong entries to which gradients add up, with their factors."""
    basis = cache(basis)
    about = [n for n in e.wrong if all(n.name in g for g in basis(e.steps - 1))]
    if not about or first >= e.steps:
        return {}

    steps = range(first, e.steps)
    # Where the factors are those of all steps, the last one rules out most, at a part of the cost.
    windows = [[step] for step in reversed(steps)] if each_step else [steps[-1:], steps]

    def fitted(entries: list[Entry]) -> Fits:
        found: Factors = ()
        for window in windows:
            factors, entries = _fitted(e, basis, entries, window, rough)
            if not entries or (each_step and not factors):
                return {}
            found = factors + found if each_step else factors
        return dict.fromkeys(entries if found else (), found)

    fits = fitted(about) if together else {}
    if len(fits) < len(about):
        groups: dict[object, list[Entry]] = {}
        for entry in about:
            groups.setdefault(entry.layer if together else entry, []).append(entry)
        for group in groups.values():
            fits |= fitted(group)
    return fits


def _fitted(
    e: Observed, basis: Basis, entries: list[Entry], steps: Sequence[int], rough: bool
) -> tuple[Factors, list[Entry]]:
    """Return factors, if these steps determine them, and the entries that they fit or may fit."""
    found: dict[Entry, list[tuple[Tensor, Tensor]]] = {}
    for n in entries:
        columns = [torch.stack([n.judged(s, g[n.name]) for g in basis(s)], 1) for s in steps]
        found[n] = [*zip(columns, (n.judged(s, n.values[s]) for s in steps), strict=True)]
    matrix, wanted = (torch.cat(each) for each in zip(*chain(*found.values()), strict=True))
    solved = torch.linalg.lstsq(matrix, wanted[:, None], rcond=DEPENDENT, driver="gelsd")
    factors, size = solved.solution[:, 0], matrix.shape[1]
    determined = len(matrix) >= OVERDETERMINED * size and solved.rank == size
    if not determined and matrix.any():
        return (), entries

    def fits(entry: Entry) -> bool:
        added = [(columns @ factors, value) for columns, value in found[entry]]
        if rough:
            return all((a - b).norm() <= ROUGHLY * b.norm() for a, b in added)
        ulps = (e.ulps(s, entry.name, *pair) for s, pair in zip(steps, added, strict=True))
        return all(off <= TOLERANCE for off in ulps)

    near = [entry for entry in entries if fits(entry)]
    return tuple(factors.tolist()) if determined else (), near


def alike(fits: Fits, least: float = 1.0) -> list[tuple[Factors, frozenset[Entry]]]:
    """Return the different factors, and who has them; below ``least`` they differ as there."""
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


def named(
    e: Observed, basis: Basis, name: Callable[[Factors], Named], behind: int = 0, **how: Any
) -> Iterator[Known]:
    """Yield what gradients explain, by names of their factors; ``how`` is of :func:`fit`."""
    for factors, entries in alike(fit(e, basis, **how)):
        for fault, said in name(factors):
            yield Known(fault, said, entries, behind)


def multiples(
    e: Observed, fault: str, said: str, predicted: Predicted, behind: int = 0, **how: Any
) -> Iterator[Known]:
    """Yield what multiples of one prediction explain; ``how`` is of :func:`fit`."""

    def name(factors: Factors) -> Named:
        if abs(factors[0]) > NOTHING:
            yield fault, said if same(factors[0], 1.0) else f"{said}, x {factors[0]:.4g}"

    return named(e, lambda step: [predicted(step)], name, behind, **how)


def explained(e: Observed, simplest_first: Iterable[Iterable[Source]]) -> list[Finding]:
    """Return findings; a later group of sources is asked if no earlier one explains all."""
    known: list[list[Known]] = []
    for sources in simplest_first if e.wrong else ():
        known.append([k for source in sources for k in source(e)])
        if any(len(k.covers) == len(e.wrong) for k in known[-1]):
            break
    left, findings = set(e.wrong), list[Finding]()
    while left:
        most = max((len(k.covers & left) for group in known for k in group), default=0)
        if not most:
            return [*findings, _unexplained(e, [entry for entry in e.wrong if entry in left])]
        best = next(b for g in known if (b := [k for k in g if len(k.covers & left) == most]))
        covered = best[0].covers & left
        fitting = [k for k in best if k.covers & left == covered]
        meant = [k for k in fitting if 0 < k.behind <= e.stated.stale]
        meant += [k for k in fitting if k.fault == Fault.ROUNDED and e.stated.lower_precision]
        chosen: dict[str, str] = {}
        for one in meant or fitting:
            chosen.setdefault(one.fault, one.said)
        names = tuple(dict.fromkeys(entry.name for entry in e.wrong if entry in covered))
        findings.append(Finding(tuple(chosen), tuple(chosen.values()), names, excused=bool(meant)))
        left -= covered
    return findings


def _unexplained(e: Observed, entries: list[Entry]) -> Finding:
    """Return a finding by where it is, and whether losses, and so forwards, are right."""
    value = torch.cat([entry.values[0].flatten() for entry in entries])
    right = torch.cat([e.right(0)[entry.name].flatten() for entry in entries])
    fault, said = Fault.UNKNOWN, "where the plain loop has no gradient"
    if right.any():
        off = float((value - right).norm() / right.norm())
        said = f"the first update is x {along(value, right):.4g} along the right one, {off:.2%} off"
    layers, ratios = {entry.layer[1] for entry in entries}, e.of_losses
    if ratios and not e.loop.case.random and len(entries) == len(e.wrong):
        below = 1 < len(layers) == max(layers) + 1 < e.loop.depth
        if max(ratios) - min(ratios) > LOSS * max(ratios):
            fault, said = Fault.FORWARD, f"losses are those of other outputs; {said}"
        elif below and isclose(ratios[0], 1.0, rel_tol=LOSS):
            fault, said = Fault.BACKWARD, f"layers from {len(layers)} on are right; {said}"
    return Finding((fault,), (said,), tuple(dict.fromkeys(n.name for n in entries)))
