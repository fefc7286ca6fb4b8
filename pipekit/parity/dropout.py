"""With dropout on, gradients are random: exact with the plain loop's masks, else in the mean."""

from collections.abc import Iterator
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


def judged_with_dropout(model: str, e: Observed, seed: int) -> Verdict:
    """Return the verdict on a model with dropout.

    If the trainer draws the plain loop's masks, seed by seed, its gradients are judged as ever.
    Else each parameter's are compared with many draws, along their mean, and the class
    "other dropout" says so.  If only its losses are those of the plain loop's masks, its backwards
    have other masks than its forwards.
    """
    for count in [e.microbatches] if e.microbatches else range(1, MOST + 1):
        drawn = cache(partial(_with_seed, e.loop, seed, count))
        e.judge_by(lambda step, of=drawn: of(step).gradients)  # type: ignore[misc]
        losses = [(drawn(step).loss, e.losses(step)) for step in range(e.steps)]
        if not e.wrong or all(of and isclose(of[0], own, rel_tol=LOSS) for own, of in losses):
            return Verdict(model, _exactly(e), tuple(_with_these_masks(e)))
    e.judge_by(cache(lambda step: _drawn(e.loop, step, training=False).gradients))
    rows = _rows(e)
    findings = _findings(e, rows) if e.wrong else [Finding((Fault.DROPOUT,), ("none at all",))]
    return Verdict(model, rows, tuple(findings), (REMARK,))


def _with_these_masks(e: Observed) -> Iterator[Finding]:
    """Yield what is wrong where forwards have the plain loop's masks."""
    if e.wrong:
        whole = [(k.fault, k.said) for k in scaled(e) if len(k.covers) == len(e.wrong)]
        other = (Fault.DROPOUT, "other masks in a backward than in its forward")
        classes, said = zip(*(whole or [other]), strict=True)
        yield Finding(classes, said, tuple(entry.name for entry in e.wrong))


def _with_seed(loop: PlainLoop, seed: int, count: int, step: int) -> PassResult:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed + step)
        return loop.batch(loop.whole(step), loop.cut(step, count), drawn=True)


def _drawn(loop: PlainLoop, step: int, training: bool = True) -> PassResult:
    return loop.run_anew(replace(loop.whole(step), training=training))


def _exactly(e: Observed) -> dict[str, Ratio]:
    rows = {}
    for entry in e.entries:
        name, steps = entry.name, (0, min(STEPS, e.steps) - 1)
        first, last = (along(entry.values[step], e.right(step)[name]) for step in steps)
        rows[name] = Ratio(first, last, e.off(entry), entry not in e.wrong)
    return rows


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
