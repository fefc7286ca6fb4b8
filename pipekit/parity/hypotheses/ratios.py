"""Gradients that are multiples of the right ones: which factors, and what they mean."""

from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise

import torch

from pipekit.parity import faults
from pipekit.parity.evidence import Evidence
from pipekit.parity.observed import Entry
from pipekit.parity.plain_loop import along

SAME = 2e-3  # relative difference of two ratios that count as one
Factors = Callable[[str, int], float]
Said = tuple[str, str, Factors]


def _ratios(e: Evidence, entry: Entry) -> list[float]:
    return [along(entry.values[step], e.raw(step)[entry.name]) for step in range(e.steps)]


def same(one: float, other: float) -> bool:
    """Return whether two ratios are one."""
    return abs(one - other) <= SAME * max(abs(one), abs(other), 1e-9)


def by_ratio(e: Evidence) -> Iterator[Said]:
    """Yield for each constant ratio that a parameter has what it may be."""
    known: list[float] = []
    for entry in e.wrong:
        ratios = _ratios(e, entry)
        constant = all(same(r, ratios[0]) for r in ratios) or not any(v.any() for v in entry.values)
        if constant and not any(same(ratios[0], other) for other in known):
            known.append(ratios[0])
            for fault in meanings(e, ratios[0]):
                yield fault, f"x {ratios[0]:.4g}", partial(_constant, ratios[0])
    yield faults.SUMMED, "over the terms of the batch", lambda _, step: e.loop.terms(step)


def _constant(factor: float, name: str, step: int) -> float:
    return factor


def meanings(e: Evidence, factor: float) -> list[str]:
    """Return the classes of which a factor may be."""
    if factor == 0:
        return [faults.NEVER, faults.LOST]
    found = []
    counts, stages = set(e.candidates), e.stages
    whole = {float(count) for count in (*counts, e.loop.terms(0)) if count > 1}
    if any(same(factor, count) for count in whole):
        found.append(faults.SUMMED)
    if any(same(1 / factor, count) for count in whole):
        found.append(faults.AVERAGED_TWICE)
    if stages is None or stages == 1:
        several = any(same(factor, float(n)) or same(1 / factor, float(n)) for n in range(2, 17))
    else:
        several = same(factor, float(stages)) or same(1 / factor, float(stages))
    return [*found, faults.TIMES_STAGES] if several else found or [faults.SCALED]


def of_all(e: Evidence) -> Iterator[Said]:
    """Yield what ratios of all parameters together may be."""
    factors = {entry.name: _ratios(e, entry) for entry in e.wrong}

    def own(name: str, step: int) -> float:
        return factors[name][step] if name in factors else 1.0

    yield from _once_a_stage(e, factors, own)
    clipped = list(_clipped(e, factors, own))
    yield from clipped
    each = list(zip(*factors.values(), strict=True))
    alike = all(same(r, step[0]) for step in each for r in step)
    if alike and not clipped and not all(same(step[0], each[0][0]) for step in each):
        yield faults.RATE, "x " + ", ".join(f"{step[0]:.4g}" for step in each), own


def _once_a_stage(e: Evidence, factors: dict[str, list[float]], own: Factors) -> Iterator[Said]:
    """Yield a factor that is applied again at each stage, from the last to the first."""
    if any(not same(r, found[0]) or r <= 0 for found in factors.values() for r in found):
        return
    depth = sorted((e.loop.layer(n), found[0]) for n, found in factors.items())
    levels: list[float] = [1.0]
    for _, factor in reversed(depth):
        if not same(factor, levels[-1]):
            levels.append(factor)
    base = levels[1] if len(levels) > 1 else 1.0
    steady = all(same(b / a, base) for a, b in pairwise(levels))
    last_is_right = depth[-1][0] < max(e.loop.layer(entry.name) for entry in e.entries)
    if steady and len(levels) > (1 if last_is_right else 2):
        shown = ", ".join(f"{level:.4g}" for level in reversed(levels))
        yield faults.ONCE_A_STAGE, f"from the first stage to the last x {shown}", own


def _clipped(e: Evidence, factors: dict[str, list[float]], own: Factors) -> Iterator[Said]:
    """Yield a common norm of all parameters that have one ratio."""
    groups: list[tuple[list[float], list[str]]] = []
    for name, found in factors.items():
        if not e.loop.uses[name].index(name):
            alike = (own for other, own in groups if all(map(same, found, other)))
            if (names := next(alike, None)) is None:
                groups.append((found, names := []))
            names.append(name)
    norms = []
    for found, names in groups:
        for step, factor in enumerate(found):
            if 0 < factor < 1 - SAME:
                gradients = [factors[n][step] * e.raw(step)[n] for n in names]
                norms.append(float(torch.stack([g.norm() for g in gradients]).norm()))
    if len(norms) > 1 and all(same(norm, norms[0]) for norm in norms):
        whole = len(groups) == 1 and len(factors) == len(e.entries)
        fault = faults.CLIPPED if whole else faults.CLIPPED_BY_STAGE
        yield fault, f"to the norm {norms[0]:.4g}, groups: {len(groups)}", own
