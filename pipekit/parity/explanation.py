"""Which hypotheses explain the parameters that disagree, by as few of them as can be."""

from collections.abc import Callable, Collection, Iterator
from functools import partial

import torch

from pipekit.parity import faults
from pipekit.parity.evidence import Evidence, Factors
from pipekit.parity.hypothesis import NOTHING, Hypothesis, Known, each, times
from pipekit.parity.in_time import in_time, of_the_update, other_optimizers
from pipekit.parity.of_layers import between, frozen, in_part, left_out, mixed, orders, tied
from pipekit.parity.of_microbatches import MOST, counted, microbatches, rows, together
from pipekit.parity.plain_loop import along
from pipekit.parity.ratios import scaled
from pipekit.parity.verdict import Finding

Source = Callable[[Evidence], Iterator[Hypothesis]]


def _simplest_first(e: Evidence) -> Iterator[tuple[Source, ...]]:
    """Yield where hypotheses come from; a later group is asked if no earlier one explains all."""
    yield tied, frozen, left_out
    yield (scaled,)
    yield of_the_update, in_time
    yield microbatches, together
    for count in (count for count in e.candidates if count <= MOST):
        yield partial(counted, count=count), partial(tied, count=count)
    yield in_part, mixed
    yield between, orders
    yield (rows,)
    yield rounded, other_optimizers


def explained(e: Evidence) -> list[Finding]:
    """Return one finding for each group of wrong entries that have a common explanation."""
    if not e.wrong:
        return []
    known, left, findings = _known(e), set(range(len(e.wrong))), []
    while left:
        most = max((len(k.covers & left) for group in known for k in group), default=0)
        if not most:
            findings.append(_unexplained(e, left))
            break
        group = next(g for g in known if any(len(k.covers & left) == most for k in g))
        best = [k for k in group if len(k.covers & left) == most]
        covered = best[0].covers & left
        findings.append(_finding(e, [k for k in best if k.covers & left == covered], covered))
        left -= covered
    return findings


def _known(e: Evidence) -> list[list[Known]]:
    """Return what explains some of the wrong entries, until something explains all of them."""
    known: list[list[Known]] = []
    for sources in _simplest_first(e):
        known.append([k for source in sources for h in source(e) for k in h.known(e)])
        if any(len(k.covers) == len(e.wrong) for k in known[-1]):
            break
    return known


def _finding(e: Evidence, alike: list[Known], covered: frozenset[int]) -> Finding:
    stale = [k for k in alike if 0 < k.behind <= e.observed.stated.stale]
    chosen: dict[str, str] = {}
    for one in stale or alike:
        chosen.setdefault(one.fault, one.said)
    names = _names(e, covered)
    return Finding(tuple(chosen), tuple(chosen.values()), names, excused=bool(stale))


def _names(e: Evidence, chosen: Collection[int]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(e.wrong[i].name for i in sorted(chosen)))


def rounded(e: Evidence) -> Iterator[Hypothesis]:
    """Yield gradients that are near the right ones, and weights that two bytes could hold."""

    def near(factors: Factors) -> Iterator[tuple[str, str]]:
        if abs(factors[0] - 1) < NOTHING:
            yield faults.ROUNDED, "within a hundredth of the right ones"

    yield Hypothesis(lambda step: [e.raw(step)], each(near), rough=True)
    for dtype in (torch.bfloat16, torch.float16):
        versions = e.loop.weights[1 : e.steps + 1]
        short = {
            n.name: n.values for n in e.wrong if all(_fits(v[n.name], dtype) for v in versions)
        }
        if short:
            yield Hypothesis(
                lambda step, short=short: [{n: v[step] for n, v in short.items()}],  # type: ignore[misc]
                times(faults.ROUNDED, f"weights are kept as {dtype}"),
            )


def _fits(weight: torch.Tensor, dtype: torch.dtype) -> bool:
    return bool((weight.to(dtype) == weight).all())


def _unexplained(e: Evidence, left: set[int]) -> Finding:
    """Return how far the first update is from the right one, for want of better."""
    entries = [e.wrong[i] for i in sorted(left)]
    value = torch.cat([entry.values[0].flatten() for entry in entries])
    right = torch.cat([e.right(0)[entry.name].flatten() for entry in entries])
    said = "where the plain loop has no gradient"
    if right.any():
        off = float((value - right).norm() / right.norm())
        said = f"the first update is x {along(value, right):.4g} along the right one, {off:.2%} off"
    return Finding((faults.UNKNOWN,), (said,), _names(e, left))
