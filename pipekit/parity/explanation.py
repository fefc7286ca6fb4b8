"""Which hypotheses explain the parameters that disagree, by as few of them as can be."""

from functools import cache

import torch

from pipekit.parity import faults
from pipekit.parity.evidence import Evidence
from pipekit.parity.hypotheses.hypothesis import Hypothesis, Source
from pipekit.parity.hypotheses.in_time import in_time, of_the_update
from pipekit.parity.hypotheses.of_microbatches import counted, microbatches, together
from pipekit.parity.hypotheses.of_parameters import frozen, left_out, scaled, tied
from pipekit.parity.plain_loop import along
from pipekit.parity.verdict import Finding

SIMPLEST_FIRST: tuple[tuple[Source, ...], ...] = (
    (tied, frozen, left_out),
    (scaled,),
    (of_the_update, in_time),
    (microbatches, together),
    (counted,),
)
"""Where hypotheses come from; a later group is asked if no single earlier one explains all."""
ROUNDING = 0.01  # of a gradient's size: bfloat16 keeps eight bits


def explained(e: Evidence) -> list[Finding]:
    """Return one finding for each group of wrong entries that have a common explanation."""
    if not e.wrong:
        return []
    known = _known(e)
    left, findings = set(range(len(e.wrong))), []
    while left:
        most = max((len(covered & left) for _, covered in known), default=0)
        if not most:
            fault, said = _unexplained(e, left)
            findings.append(Finding((fault,), (said,), _names(e, left)))
            break
        best = [(h, covered & left) for h, covered in known if len(covered & left) == most]
        group = best[0][1]
        alike = [h for h, covered in best if covered == group]
        findings.append(_finding(e, alike, _names(e, group)))
        left -= group
    return findings


def _names(e: Evidence, chosen: set[int]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(e.wrong[i].name for i in sorted(chosen)))


def _known(e: Evidence) -> list[tuple[Hypothesis, set[int]]]:
    """Return hypotheses and the wrong entries that each explains, until one explains all."""
    known: list[tuple[Hypothesis, set[int]]] = []
    for sources in SIMPLEST_FIRST:
        for source in sources:
            for h in source(e):
                predicts = cache(h.predicts)
                about = [i for i, n in enumerate(e.wrong) if not h.entries or n.name in h.entries]
                covered = {i for i in about if e.agrees(e.wrong[i], predicts)}
                if covered:
                    known.append((h, covered))
        if any(len(covered) == len(e.wrong) for _, covered in known):
            break
    return known


def _finding(e: Evidence, alike: list[Hypothesis], names: tuple[str, ...]) -> Finding:
    stale = [h for h in alike if 0 < h.behind <= e.observed.stated.stale]
    chosen: dict[str, str] = {}
    for h in stale or alike:
        chosen.setdefault(h.fault, h.detail)
    return Finding(tuple(chosen), tuple(chosen.values()), names, excused=bool(stale))


def _unexplained(e: Evidence, left: set[int]) -> tuple[str, str]:
    """Return a class and how far the first update is from the right one, for want of better."""
    entries = [e.wrong[i] for i in left]
    value = torch.cat([entry.values[0].flatten() for entry in entries])
    right = torch.cat([e.right(0)[entry.name].flatten() for entry in entries])
    if not right.any():
        return faults.UNKNOWN, "where the plain loop has no gradient"
    off, times = float((value - right).norm() / right.norm()), along(value, right)
    fault = faults.ROUNDED if 0 < off < ROUNDING and abs(times - 1) < off else faults.UNKNOWN
    return fault, f"the first update is x {times:.4g} along the right one, {off:.2%} off"
