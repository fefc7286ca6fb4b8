"""Gradients that are multiples of the right ones: which factors, and what they mean."""

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import pairwise

import torch

from pipekit.parity import faults
from pipekit.parity.evidence import Evidence
from pipekit.parity.hypothesis import SAME, Fits, Hypothesis, Said, alike, same
from pipekit.parity.plain_loop import Tensors

_LEAST = 1e-6


def scaled(e: Evidence) -> Iterator[Hypothesis]:
    """Yield multiples of the right gradients, in each step another one."""

    def of_step(step: int) -> list[Tensors]:
        return [
            {n: float(other == step) * g for n, g in e.raw(step).items()}
            for other in range(e.steps)
        ]

    yield Hypothesis(of_step, partial(_named, e))


def _named(e: Evidence, fits: Fits) -> Iterator[Said]:
    for factors, numbers in alike(fits, _LEAST):
        if constant(factors):
            for fault in meanings(e, factors[0]):
                yield fault, f"x {factors[0]:.4g}", numbers
        elif terms := _over_terms(e, factors):
            fault = faults.SUMMED if same(terms, 1.0) else faults.TERMS
            yield fault, f"over the terms of the batch, then x {terms:.4g}", numbers
    yield from _once_a_stage(e, fits)
    clipped = list(_clipped(e, fits))
    yield from clipped
    groups = alike(fits, _LEAST)
    varies = len(groups) == 1 and not constant(groups[0][0]) and not _over_terms(e, groups[0][0])
    if varies and not clipped:
        shown = ", ".join(f"{factor:.4g}" for factor in groups[0][0])
        fault = faults.CLIPPED if e.observed.stated.clip_norm else faults.RATE
        yield fault, f"x {shown}", groups[0][1]


def _over_terms(e: Evidence, factors: Sequence[float]) -> float:
    """Return the constant that factors are times the terms of each batch; 0 if they are not."""
    each = [factor / e.loop.terms(step) for step, factor in enumerate(factors)]
    return each[0] if constant(each) else 0.0


def constant(factors: Sequence[float]) -> bool:
    """Return whether factors are the same in all steps."""
    return all(same(factor, factors[0]) for factor in factors)


def meanings(e: Evidence, factor: float) -> list[str]:
    """Return the classes of which a factor may be."""
    if abs(factor) < _LEAST:
        return [faults.NEVER, faults.LOST]
    found = []
    counts, stages = set(e.candidates), e.stages
    whole = {float(count) for count in (*counts, e.loop.terms(0)) if count > 1}
    if any(same(factor, count) for count in whole):
        found.append(faults.SUMMED)
    if any(same(1 / factor, count) for count in whole):
        found.append(faults.AVERAGED_TWICE)
    possible = range(2, 17) if stages is None or stages == 1 else (stages,)
    if any(same(factor, float(n)) or same(1 / factor, float(n)) for n in possible):
        found.append(faults.TIMES_STAGES)
    return found or [faults.SCALED]


def _once_a_stage(e: Evidence, fits: Fits) -> Iterator[Said]:
    """Yield a factor that is applied again at each stage, from the last to the first."""
    if not fits or any(not constant(found) or found[0] < _LEAST for found in fits.values()):
        return
    depth = sorted((e.loop.layer(e.wrong[n].name), found[0]) for n, found in fits.items())
    levels: list[float] = [1.0]
    for _, factor in reversed(depth):
        if not same(factor, levels[-1]):
            levels.append(factor)
    base = levels[1] if len(levels) > 1 else 1.0
    steady = all(same(b / a, base) for a, b in pairwise(levels))
    last_is_right = depth[-1][0] < max(e.loop.layer(entry.name) for entry in e.entries)
    if steady and len(levels) > (1 if last_is_right else 2):
        shown = ", ".join(f"{level:.4g}" for level in reversed(levels))
        yield faults.ONCE_A_STAGE, f"from the first stage to the last x {shown}", frozenset(fits)


def _clipped(e: Evidence, fits: Fits) -> Iterator[Said]:
    """Yield a common norm of all parameters that have one ratio."""
    norms, groups = [], alike(fits, _LEAST)
    for factors, numbers in groups:
        names = {name for n in numbers if (name := e.wrong[n].name) == e.loop.uses[name][0]}
        for step, factor in enumerate(factors):
            if 0 < factor < 1 - SAME and names:
                norm = torch.stack([e.raw(step)[n].norm() for n in names]).norm()
                norms.append(factor * float(norm))
    if len(norms) > 1 and constant(norms):
        whole = len(groups) == 1 and len(fits) == len(e.entries)
        fault = faults.CLIPPED if whole else faults.CLIPPED_BY_STAGE
        yield fault, f"to the norm {norms[0]:.4g}, groups: {len(groups)}", frozenset(fits)
