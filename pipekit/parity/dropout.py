"""With dropout on, gradients are random: exact with the plain loop's masks, else in the mean."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache, partial
from math import isclose

import torch

from pipekit.parity.observed import Observed
from pipekit.parity.of_updates import meanings, scaled
from pipekit.parity.plain_loop import PassResult, PlainLoop, along
from pipekit.parity.verdict import LOSS, Fault, Finding, Ratio, Verdict

DRAWS = 24  # of masks
SIGMAS = 6  # by which the trainer's gradient may be off in the direction of their mean
STEPS = 3
MOST = 16  # microbatches that are tried
REMARK = f"more than the mean of {DRAWS} draws, since the masks are not the plain loop's"

Draw = Callable[[int], PassResult]
"""A step's loss and gradients with some masks."""


def judged_with_dropout(model: str, e: Observed, seed: int) -> Verdict:
    """Return the verdict on a model with dropout.

    If the trainer draws the plain loop's masks, seed by seed, its gradients are judged as ever.
    Else each parameter's are compared with many draws, along their mean, and the class
    "other dropout" says so.  If only its losses are those of the plain loop's masks, its backwards
    have other masks than its forwards.
    """
    for count in [e.microbatches] if e.microbatches else range(1, MOST + 1):
        drawn = cache(partial(_with_seed, e.loop, seed, count))
        if _agrees(e, drawn):
            off = {n.name: e.off(n, lambda step, of=drawn: of(step).gradients) for n in e.entries}  # type: ignore[misc]
            return Verdict(model, {n: Ratio(1.0, 1.0, ulps, True) for n, ulps in off.items()})
        losses = [(drawn(step).loss, e.losses(step)) for step in range(e.steps)]
        if all(of and isclose(of[0], own, rel_tol=LOSS) for own, of in losses):
            return Verdict(model, _rows(e), (_with_these_masks(e, drawn),), (REMARK,))
    rows = _rows(e)
    findings = [Finding((Fault.DROPOUT,), ("none at all",))]
    if not _agrees(e, cache(partial(_drawn, e.loop, training=False))):
        findings = list(_findings(e, rows))
    return Verdict(model, rows, tuple(findings), (REMARK,))


def _with_these_masks(e: Observed, drawn: Draw) -> Finding:
    """Return what is wrong where forwards have the plain loop's masks."""
    e.raw = e.right = lambda step: drawn(step).gradients
    e.wrong = [entry for entry in e.entries if not e.agrees(entry, e.right)]
    whole = [(k.fault, k.said) for k in scaled(e) if len(k.covers) == len(e.wrong)]
    other = (Fault.DROPOUT, "other masks in a backward than in its forward")
    classes, said = zip(*(whole or [other]), strict=True)
    return Finding(classes, said, tuple(entry.name for entry in e.wrong))


def _with_seed(loop: PlainLoop, seed: int, count: int, step: int) -> PassResult:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed + step)
        return loop.batch(loop.whole(step), loop.cut(step, count), drawn=True)


def _drawn(loop: PlainLoop, step: int, training: bool = True) -> PassResult:
    return loop.run_anew(replace(loop.whole(step), training=training))


def _agrees(e: Observed, drawn: Draw) -> bool:
    return all(e.agrees(entry, lambda step: drawn(step).gradients) for entry in e.entries)


def _rows(e: Observed) -> dict[str, Ratio]:
    """Return the ratios along the mean of many draws; right if they are within their spread."""
    draws = [[_drawn(e.loop, step).gradients for _ in range(DRAWS)] for step in range(STEPS)]
    rows = {}
    for entry in e.entries:
        of_steps = [torch.stack([draw[entry.name] for draw in drawn]) for drawn in draws]
        means = [of_step.mean(0) for of_step in of_steps]
        found = [along(value, mean) for value, mean in zip(entry.values, means, strict=False)]
        spreads = [
            float(torch.tensor([along(draw, mean) for draw in of_step]).std())
            for of_step, mean in zip(of_steps, means, strict=True)
        ]
        off = [abs(r - 1) - SIGMAS * spread for r, spread in zip(found, spreads, strict=True)]
        rows[entry.name] = Ratio(found[0], sum(found) / len(found), None, max(off) <= 1e-3)
    return rows


def _findings(e: Observed, rows: dict[str, Ratio]) -> Iterator[Finding]:
    yield Finding((Fault.DROPOUT,), ("other masks than the plain loop's",), excused=True)
    wrong = {name: row.after_three for name, row in rows.items() if not row.right}
    if wrong:
        mean = sum(wrong.values()) / len(wrong)
        near = round(mean) if mean > 1.5 else 1 / round(1 / mean) if 0 < mean < 0.75 else mean
        classes = [Fault.UNKNOWN] if near == mean and any(wrong.values()) else meanings(e, near)
        yield Finding(tuple(classes), (f"about x {mean:.3g}",) * len(classes), tuple(wrong))
