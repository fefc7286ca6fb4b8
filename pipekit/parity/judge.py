"""Runs a trainer beside the plain loop and says whether its gradients are right."""

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from math import isclose
from typing import Any

import cloudpickle
import torch

from pipekit.choices import require_choice
from pipekit.parity import of_losses, of_microbatches, of_passes, of_updates
from pipekit.parity.adapter import STEPS, Adapter, RankRecord, train
from pipekit.parity.fit import Source, explained
from pipekit.parity.launch import Ranks
from pipekit.parity.observed import Observed
from pipekit.parity.plain_loop import SEED, Pass, PlainLoop, along
from pipekit.parity.suite import SUITE
from pipekit.parity.verdict import LOSS, Fault, Finding, Ratio, Verdict

IN_PART: tuple[Source, ...] = (
    *(of_updates.scaled, of_updates.of_the_update),
    *(of_microbatches.tied, of_microbatches.counted),
)
SIMPLEST_FIRST: tuple[tuple[Source, ...], ...] = (
    (of_microbatches.tied, of_updates.frozen, of_passes.left_out, of_passes.untold),
    (of_updates.scaled,),
    (of_updates.of_the_update, of_passes.in_time, of_losses.of_the_loss),
    (of_microbatches.microbatches,),
    (of_microbatches.counted,),
    (partial(of_updates.in_part, sources=IN_PART), of_updates.mixed, of_updates.placed),
    (of_passes.between, of_passes.orders),
    (of_microbatches.rows, of_microbatches.positions, of_passes.altered),
    (of_updates.rounded, of_updates.other_optimizers),
    (of_losses.of_outputs,),
)
SAME_MASKS: tuple[tuple[Source, ...], ...] = (
    (of_passes.untold, of_updates.scaled),
    (of_updates.of_the_update, of_microbatches.in_turn),
    (of_passes.altered,),
)

UNTOLD = (Fault.UNKNOWN, Fault.FORWARD, Fault.BACKWARD)  # which other masks may explain

DRAWS = 24  # of masks
SIGMAS = 6  # by which the trainer's gradient may be off in the direction of their mean
DRAWN = 3  # steps that are compared with draws


def parity(
    adapter: str | Callable[[], Adapter],
    model: str = "dense",
    processes: int = 1,
    timeout: float = 60.0,
) -> Verdict:
    """Run a trainer in processes of its own and compare it with the plain loop.

    Args:
        adapter: ``FILE.py:Adapter``, ``package.module:Adapter``, or the class.
        model: of the suite.
        processes: ranks to start, with torchrun's variables.
        timeout: seconds after which all of them are ended.

    Raises:
        ValueError: the trainer fails, hangs or returns what no model could have.
    """
    require_choice("model", model, SUITE)
    if isinstance(adapter, type) and adapter.__module__ != "__main__":
        # Other processes may not find its module: it is sent itself.
        cloudpickle.register_pickle_by_value(sys.modules[adapter.__module__])

    def run(seed: int) -> list[RankRecord]:
        with Ranks(processes) as started:
            records = started.call(_trained, adapter, model, seed, timeout=timeout)
            started.leave()
        return records

    verdict = judged(model, records := run(SEED))
    if not {*verdict.classes} & {*UNTOLD} or SUITE[model].random:
        return verdict
    pairs = zip(records, run(SEED + 1), strict=True)
    ends = ((a.parameters[-1], b.parameters[-1]) for a, b in pairs)
    if all(torch.equal(tensor, b[name]) for a, b in ends for name, tensor in a.items()):
        return verdict
    findings = _by_masks("another seed gives other weights", verdict.findings)
    return replace(verdict, findings=tuple(findings))


def _by_masks(said: str, findings: Iterable[Finding]) -> list[Finding]:
    """Return findings of which other masks may explain those without a class."""
    return [
        replace(f, classes=(Fault.DROPOUT, *f.classes), said=(said, *f.said))
        if f.classes[0] in UNTOLD
        else f
        for f in findings
    ]


def _trained(_: int, adapter: Any, model: str, seed: int) -> RankRecord:
    torch.set_num_threads(int(os.environ.setdefault("OMP_NUM_THREADS", "1")))
    return train(adapter, model, seed)


def judged(model: str, records: Sequence[RankRecord]) -> Verdict:
    """Return the verdict on the ranks' records.

    A model with dropout is judged as every other if the trainer draws the plain loop's masks, or
    none.  If only its losses are those of these masks, its backwards have others.  Else gradients
    are compared with many draws, along their mean.
    """
    case = SUITE[model]
    loop = PlainLoop(case, case.batches(STEPS, records[0].stated.microbatches))
    e = Observed(loop, records)
    beside, findings, replicas = [*_beside_gradients(e)], list[Finding](), e.replicas()
    for own in replicas:
        for each in filter(None, (own, own.by_gradients())):
            sources = SAME_MASKS if case.random else SIMPLEST_FIRST
            findings += [f for f in explained(each, sources) if f not in findings]
    meant = e.stated.lower_precision or any(f.excused for f in findings)
    losses = [*dict.fromkeys(f for own in replicas for f in _loss(own))]
    if case.random and any(f.classes == (Fault.UNKNOWN,) for f in findings):
        if losses or not e.losses(0):
            rows = _along_draws(e)
            remark = (
                f"more than the mean of {DRAWS} draws, since the masks are not the plain loop's"
            )
            return Verdict(model, rows, (*beside, *_in_the_mean(e, rows)), (remark,))
        findings = _by_masks("other masks in a backward than in its forward", findings)
    if meant or e.missing or any(Fault.DROPOUT in f.classes for f in findings):
        losses = []  # which are of other weights, or of no masks
    return Verdict(model, _ratios(e), (*beside, *findings, *losses), tuple(_remarks(e, meant)))


def _beside_gradients(e: Observed) -> Iterator[Finding]:
    for names, fault, said in (
        (e.other_start, Fault.START, "than build() was given"),
        (e.missing, Fault.MISSING, "no rank holds them"),
        (e.differing, Fault.RANKS, "two ranks hold copies"),
        (_wrong_buffers(e), Fault.BATCH_NORM, "other than after each microbatch in turn"),
    ):
        if names:
            yield Finding((fault,), (said,), tuple(names))
    if e.finite < len(e.loop.batches):
        said = f"after update {e.finite + 1}, where the plain loop's numbers are finite"
        yield Finding((Fault.NOT_FINITE,), (said,))


def _wrong_buffers(e: Observed) -> list[str]:
    wrong: dict[str, None] = {}
    for step in range(e.steps):
        expected = e.loop.running_statistics(step, e.microbatches or 1)
        for name in e.held & expected.keys():
            right, held = expected[name].double(), e.loop.buffers[step + 1][name].double()
            if (held - right).abs().max() > 1e-5 * max(float(right.abs().max()), 1.0):
                wrong[name] = None
    return [name for name in e.loop.buffers[0] if name in wrong]


def _loss(e: Observed) -> Iterator[Finding]:
    ratios = e.of_losses
    if any(not isclose(ratio, 1.0, rel_tol=LOSS) for ratio in ratios):
        shown = f"x {min(ratios):.4g}"
        if not isclose(min(ratios), max(ratios), rel_tol=LOSS):
            shown += f" to x {max(ratios):.4g}"
        yield Finding((Fault.LOSS,), (f"{shown} the mean loss of the batch before its update",))


def _remarks(e: Observed, meant: bool) -> Iterator[str]:
    if meant or e.missing:
        older = "older weights" if e.stated.stale else "a lower precision"
        of = older if meant else "weights that no rank holds"
        yield f"the reported loss, which is of {of}"
    elif not any(e.losses(step) for step in range(e.steps)):
        yield "the reported loss, of which there is none"
    if e.loop.buffers[0] and not e.held & e.loop.buffers[0].keys():
        yield "running statistics, which parameters() does not return"


def _ratios(e: Observed) -> dict[str, Ratio]:
    found: dict[str, Ratio] = {}
    weights, three = e.loop.weights, min(3, len(e.loop.weights) - 1)
    plain = e.loop.train(three, e.microbatches or 1, e.stated.clip_norm).weights
    for entry in e.entries:
        own, right = ([each[entry.name] for each in loop] for loop in (weights, plain))
        one, last = (along(own[0] - own[n], right[0] - right[n]) for n in (1, three))
        found.setdefault(entry.name, Ratio(one, last, e.off(entry), entry not in e.wrong))
    return found


def _along_draws(e: Observed) -> dict[str, Ratio]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        draws = [
            [e.loop.run_anew(step, Pass()).gradients for _ in range(DRAWS)] for step in range(DRAWN)
        ]
    rows = {}
    for entry in e.entries:
        found, off = list[float](), list[float]()
        for value, drawn in zip(entry.values, draws, strict=False):
            own = [draw[entry.name] for draw in drawn]
            mean = torch.stack(own).mean(0)
            spread = torch.tensor([along(gradient, mean) for gradient in own]).std()
            found.append(along(value, mean))
            off.append(abs(found[-1] - 1) - SIGMAS * float(spread))
        rows[entry.name] = Ratio(found[0], sum(found) / len(found), None, max(off) <= 1e-3)
    return rows


def _in_the_mean(e: Observed, rows: dict[str, Ratio]) -> Iterator[Finding]:
    yield Finding((Fault.DROPOUT,), ("other masks than the plain loop's",), excused=True)
    wrong = {name: row.after_three for name, row in rows.items() if not row.right}
    if wrong:
        mean = sum(wrong.values()) / len(wrong)
        near = round(mean) if mean > 1.5 else 1 / round(1 / mean) if 0 < mean < 0.75 else mean
        unlike = near == mean and any(wrong.values())
        classes = [Fault.UNKNOWN] if unlike else of_updates.meanings(e, near)
        yield Finding(tuple(classes), (f"about x {mean:.3g}",) * len(classes), tuple(wrong))
