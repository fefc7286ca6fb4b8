"""With dropout on, gradients are random: exact with the plain loop's masks, else in the mean."""

from functools import cache, partial

import torch

from pipekit.parity import faults
from pipekit.parity.evidence import Evidence, Prediction
from pipekit.parity.hypotheses.ratios import meanings
from pipekit.parity.observed import TOLERANCE, Entry
from pipekit.parity.plain_loop import PlainLoop, Tensors, along, total
from pipekit.parity.verdict import Finding, Ratio, Verdict, classes_of

DRAWS = 24  # of masks
SIGMAS = 6  # by which the trainer's gradient may be off in the direction of their mean
STEPS = 3
NO_DROPOUT = Finding((faults.DROPOUT,), ("none at all",))
MOST = 16  # microbatches that are tried


def judged_with_dropout(model: str, e: Evidence, seed: int) -> Verdict:
    """Return the verdict on a model with dropout.

    If the trainer draws the plain loop's masks, seed by seed, its gradients are judged as ever.
    Else each parameter's are compared with many draws, along their mean, and the class
    "other dropout" says so.
    """
    counts = [e.microbatches] if e.microbatches else range(1, MOST + 1)
    for count in counts:
        masks = cache(partial(_with_seed, e.loop, seed, count))
        if all(e.agrees(entry, masks) for entry in e.entries):
            ratios = {n.name: Ratio(1.0, 1.0, _ulps(e, n, masks), True) for n in e.entries}
            return Verdict(True, (), ratios, (), (), model, TOLERANCE)
    without = cache(partial(_drawn, e.loop, dropout=False))
    none_at_all = all(e.agrees(entry, without) for entry in e.entries)
    draws = [[_drawn(e.loop, step) for _ in range(DRAWS)] for step in range(STEPS)]
    rows = {entry.name: _row(entry, draws) for entry in e.entries}
    findings = [NO_DROPOUT] if none_at_all else _findings(e, rows)
    remark = f"more than the mean of {DRAWS} draws, since the masks are not the plain loop's"
    ok = all(finding.excused for finding in findings)
    return Verdict(ok, classes_of(findings), rows, tuple(findings), (remark,), model, TOLERANCE)


def _with_seed(loop: PlainLoop, seed: int, count: int, step: int) -> Tensors:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed + step)
        return total((1.0, loop.drawn(step, rows)) for rows in loop.cut(step, count))


def _drawn(loop: PlainLoop, step: int, dropout: bool = True) -> Tensors:
    return loop.drawn(step, (0, loop.rows(step)), dropout)


def _ulps(e: Evidence, entry: Entry, masks: Prediction) -> float:
    steps = range(e.steps)
    return max(e.ulps(s, entry.name, entry.values[s], masks(s)[entry.name]) for s in steps)


def _row(entry: Entry, draws: list[list[Tensors]]) -> Ratio:
    """Return the ratios along the mean of the draws; right if they are within their spread."""
    means = [torch.stack([d[entry.name] for d in of_step]).mean(0) for of_step in draws]
    found = [along(value, mean) for value, mean in zip(entry.values, means, strict=False)]
    spreads = [
        float(torch.tensor([along(d[entry.name], mean) for d in of_step]).std())
        for of_step, mean in zip(draws, means, strict=True)
    ]
    right = all(
        abs(ratio - 1) <= SIGMAS * spread + 1e-3
        for ratio, spread in zip(found, spreads, strict=True)
    )
    return Ratio(found[0], sum(found) / len(found), None, right)


def _findings(e: Evidence, rows: dict[str, Ratio]) -> list[Finding]:
    other = Finding((faults.DROPOUT,), ("other masks than the plain loop's",), excused=True)
    wrong = [name for name, row in rows.items() if not row.right]
    if not wrong:
        return [other]
    mean = sum(rows[name].after_three for name in wrong) / len(wrong)
    near = round(mean) if mean > 1.5 else 1 / round(1 / mean) if 0 < mean < 0.75 else mean
    silent = all(rows[name].after_three == 0 for name in wrong)
    classes = [faults.UNKNOWN]
    if silent or near != mean:
        classes = meanings(e, 0.0 if silent else near)
    return [other, Finding(tuple(classes), (f"about x {mean:.3g}",) * len(classes), tuple(wrong))]
