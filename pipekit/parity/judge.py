"""Runs a trainer beside the plain loop and says whether its gradients are right."""

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from math import isclose

import cloudpickle
import torch

from pipekit.choices import require_choice
from pipekit.parity import faults
from pipekit.parity.adapter import Adapter, Stated
from pipekit.parity.dropout import judged_with_dropout
from pipekit.parity.evidence import Evidence
from pipekit.parity.explanation import explained
from pipekit.parity.launch import run
from pipekit.parity.observed import Entry, Observed
from pipekit.parity.plain_loop import PlainLoop, along
from pipekit.parity.suite import SUITE
from pipekit.parity.verdict import LOSS, Finding, Ratio, Verdict
from pipekit.parity.worker import Job, Record

STEPS = 6  # batches: gradients that are stale by four updates are told from those by five
SEED = 7


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
    if processes < 1 or not timeout > 0:
        raise ValueError("processes is a number from 1, and the time limit is above 0 s")
    if isinstance(adapter, type) and adapter.__module__ != "__main__":
        # Other processes may not find its module: it is sent itself.
        cloudpickle.register_pickle_by_value(sys.modules[adapter.__module__])
    job = Job(adapter, model, STEPS, SEED)
    verdict = judged(model, records := run(job, processes, timeout))
    if faults.UNKNOWN in verdict.classes and not SUITE[model].random:
        again = run(replace(job, seed=SEED + 1), processes, timeout)
        if not _same(records, again):
            random = Finding((faults.DROPOUT,), ("another seed gives other weights",))
            findings = [
                replace(random, parameters=f.parameters) if f.classes == (faults.UNKNOWN,) else f
                for f in verdict.findings
            ]
            return Verdict.of(findings, verdict.parameters, verdict.remarks, model)
    return verdict


def _same(one: Sequence[Record], other: Sequence[Record]) -> bool:
    return all(
        torch.equal(tensor, again.parameters[-1][name])
        for record, again in zip(one, other, strict=True)
        for name, tensor in record.parameters[-1].items()
    )


def judged(model: str, records: Sequence[Record]) -> Verdict:
    """Return the verdict on the ranks' records."""
    case = SUITE[model]
    loop = PlainLoop(case, case.batches(STEPS, records[0].stated.microbatches))
    observed = Observed(loop, records)
    e = _evidence(observed, observed.updates)
    if case.random:
        return judged_with_dropout(model, e, SEED)
    findings = [*_beside_gradients(e), *explained(e)]
    if observed.gradients:
        own = _evidence(observed, observed.gradients)
        findings += [f for f in explained(own) if f not in findings]
    stale = any(f.excused for f in findings)
    if not stale:
        findings += _loss(e)
    return Verdict.of(findings, _ratios(e), list(_remarks(observed, stale)), model)


def _evidence(observed: Observed, entries: Sequence[Entry]) -> Evidence:
    loop, stated = observed.loop, observed.stated
    rows = loop.rows(0)
    candidates = [n for n in range(2, rows + 1) if rows % n == 0]
    if stated.microbatches:
        candidates = [stated.microbatches]
    elif loop.case.odd:
        candidates = list(range(2, 17))
    microbatches = stated.microbatches
    if microbatches is None and loop.case.coupled:
        possible = [1, *(n for n in candidates if n <= rows // 4)]
        microbatches = max(possible, key=lambda n: _likeness(loop, entries, n))
    ranks = len(observed.records)
    stages = stated.stages or (ranks if ranks > 1 else None)
    return Evidence(
        observed, entries, microbatches, candidates, stages, _stage_of(observed, stated)
    )


def _likeness(loop: PlainLoop, entries: Sequence[Entry], microbatches: int) -> float:
    """Return how parallel the first update is to that of so many microbatches."""
    right = loop.expected(0, microbatches)
    return sum(
        float(torch.cosine_similarity(entry.values[0].flatten(), right[entry.name].flatten(), 0))
        for entry in entries
    )


def _stage_of(observed: Observed, stated: Stated) -> list[int] | None:
    """Return the stage of each layer: as stated, or as the ranks hold them."""
    depth = observed.loop.depth
    if stated.stages:
        parts = torch.arange(depth).tensor_split(stated.stages)
        balance = stated.balance or [len(part) for part in parts]
        return [stage for stage, layers in enumerate(balance) for _ in range(layers)]
    ends = sorted((min(own), max(own)) for own in observed.layers_held() if own)
    if any(a[1] >= b[0] for a, b in pairwise(ends)):
        return None  # several stages a rank
    return [sum(first <= layer for first, _ in ends[1:]) for layer in range(depth)]


def _beside_gradients(e: Evidence) -> Iterator[Finding]:
    """Yield what is wrong beside gradients."""
    observed = e.observed
    wrong_buffers = [n for n in _buffers_held(observed) if not _agrees_with_buffers(e, n)]
    for names, fault, said in (
        (observed.other_start, faults.START, "than build() was given"),
        (observed.missing, faults.MISSING, "no rank holds them"),
        (observed.differing, faults.RANKS, "two ranks hold copies"),
        (wrong_buffers, faults.BATCH_NORM, "other than after each microbatch in turn"),
    ):
        if names:
            yield Finding((fault,), (said,), tuple(names))
    if not observed.finite:
        said = f"after update {observed.steps + 1}, where the plain loop's numbers are finite"
        yield Finding((faults.NOT_FINITE,), (said,))


def _buffers_held(observed: Observed) -> list[str]:
    held = {name for record in observed.records for name in record.parameters[-1]}
    return [name for name in observed.loop.buffers[0] if name in held]


def _agrees_with_buffers(e: Evidence, name: str) -> bool:
    loop = e.loop
    for step in range(e.steps):
        expected = loop.running_statistics(step, e.microbatches or 1)[name].double()
        size = max(float(expected.abs().max()), 1.0)
        if (loop.buffers[step + 1][name].double() - expected).abs().max() > 1e-5 * size:
            return False
    return True


def _loss(e: Evidence) -> Iterator[Finding]:
    """Yield what is wrong with the losses that the ranks report."""
    ratios = []
    for step, reported in enumerate(e.observed.losses[: e.steps]):
        right = e.loop.loss(step, e.microbatches or 1)
        ratios += [loss / right for loss in reported]
    if any(not isclose(ratio, 1.0, rel_tol=LOSS) for ratio in ratios):
        shown = f"x {min(ratios):.4g}"
        if not isclose(min(ratios), max(ratios), rel_tol=LOSS):
            shown += f" to x {max(ratios):.4g}"
        yield Finding((faults.LOSS,), (f"{shown} the mean loss of the batch before its update",))


def _remarks(observed: Observed, stale: bool) -> Iterator[str]:
    if not any(observed.losses) or stale:
        yield "the reported loss, " + (
            "which is of older weights" if stale else "of which there is none"
        )
    if observed.loop.buffers[0] and not _buffers_held(observed):
        yield "running statistics, which parameters() does not return"


def _ratios(e: Evidence) -> dict[str, Ratio]:
    """Return each parameter's ratios, those of the first rank that holds it."""
    found: dict[str, Ratio] = {}
    weights, three = e.loop.weights, min(3, e.observed.steps)
    plain = e.loop.train(three, e.microbatches or 1, e.observed.stated.clip_norm)
    for entry in e.entries:
        name = entry.name
        ulps = max(e.ulps(s, name, entry.values[s], e.right(s)[name]) for s in range(e.steps))
        changes = [
            along(weights[0][name] - weights[n][name], plain[0][name] - plain[n][name])
            for n in (1, three)
        ]
        found.setdefault(name, Ratio(changes[0], changes[1], ulps, entry not in e.wrong))
    return found
