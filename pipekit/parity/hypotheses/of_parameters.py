"""Faults of some parameters: tied, frozen, in layers left out, or all multiplied."""

from collections.abc import Iterator
from dataclasses import replace
from functools import cache, partial

import torch

from pipekit.parity import faults
from pipekit.parity.evidence import Evidence
from pipekit.parity.hypotheses.fitted import NOTHING, fitted
from pipekit.parity.hypotheses.hypothesis import Hypothesis
from pipekit.parity.hypotheses.ratios import Factors, by_ratio, of_all
from pipekit.parity.plain_loop import Tensors, total


def tied(e: Evidence) -> Iterator[Hypothesis]:
    """Yield sums over other uses of shared weights."""
    shared = [entry for entry in e.wrong if len(e.loop.uses[entry.name]) > 1]
    factors = {n.name: fitted(e, [n], partial(_each_use, e, n.name)) for n in shared}
    known = {name: found for name, found in factors.items() if found is not None}
    if not known or len(known) < len(factors):
        return

    def predicted(step: int) -> Tensors:
        sums = (total(zip(f, _each_use(e, n, step), strict=True)) for n, f in known.items())
        return {n: g for found in (e.raw(step), *sums) for n, g in found.items()}

    every = [factor for found in known.values() for factor in found]
    fault = faults.TIED_TWICE if max(every) > 1 + NOTHING else faults.AVERAGED_TWICE
    if any(abs(factor) < NOTHING for factor in every):
        fault = faults.TIED_ONCE
    said = "; ".join(f"{name}: {_counts(e, name, found)}" for name, found in known.items())
    yield Hypothesis(fault, said, predicted, entries=frozenset(known))


def _counts(e: Evidence, name: str, factors: list[float]) -> str:
    counted = zip(e.loop.uses[name], factors, strict=True)
    return ", ".join(f"{factor + 0.0:.2f} of its use as {use}" for use, factor in counted)


def _each_use(e: Evidence, name: str, step: int) -> list[Tensors]:
    """Return the gradient of each use of a weight, under one of its names."""
    parts = e.loop.cut(step, e.microbatches or 1)
    found = [e.loop.run(replace(e.loop.whole(step), rows=rows)).gradients for rows in parts]
    shares = [e.loop.share(step, rows) for rows in parts]
    return [
        {name: torch.stack([s * g[use] for s, g in zip(shares, found, strict=True)]).sum(0)}
        for use in e.loop.uses[name]
    ]


def frozen(e: Evidence) -> Iterator[Hypothesis]:
    """Yield that a frozen parameter moves, however it does."""
    own = {entry.name: entry.values for entry in e.wrong if entry.name in e.loop.frozen}
    if own:

        def predicted(step: int) -> Tensors:
            return {n: values[step] for n, values in own.items()}

        yield Hypothesis(faults.FROZEN, "", predicted, entries=frozenset(own))


def left_out(e: Evidence) -> Iterator[Hypothesis]:
    """Yield the model without the layers that nobody has, or that get no gradients."""
    trained = {n for n in e.loop.uses if n not in e.loop.frozen}
    silent = {n.name for n in e.wrong if not any(v.any() for v in n.values[: e.steps])}
    silent |= set(e.observed.missing)
    absent = {e.loop.layer(n) for n in silent} - {e.loop.layer(n) for n in trained - silent}
    if not absent:
        return

    @cache
    def predicted(step: int) -> Tensors:
        found = e.loop.summed(replace(e.loop.whole(step), without=frozenset(absent)))
        return found | {n: 0 * e.raw(step)[n] for n in silent}

    try:
        fits = all(e.agrees(entry, predicted) for entry in e.entries)
    except (RuntimeError, TypeError, ValueError):  # the layers around do not fit one another
        return
    if fits:
        which = ", ".join(map(str, sorted(absent)))
        yield Hypothesis(faults.MISSING, f"as if layers {which} were not there", predicted)


def scaled(e: Evidence) -> Iterator[Hypothesis]:
    """Yield multiples of the right gradients."""

    def predicted(step: int, factors: Factors) -> Tensors:
        return {n: factors(n, step) * g for n, g in e.raw(step).items()}

    for fault, detail, factors in (*by_ratio(e), *of_all(e)):
        yield Hypothesis(fault, detail, partial(predicted, factors=factors))
