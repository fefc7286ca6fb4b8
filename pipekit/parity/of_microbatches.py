"""Faults of microbatches: lost, repeated, late, alone, or averaged each by its own terms."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache, partial
from itertools import pairwise
from typing import Any

import torch

from pipekit.parity.factors import LEAST, NOTHING, Factors, same, shown, whole
from pipekit.parity.fit import Basis, Known, Named, alike, fit, multiples, named
from pipekit.parity.observed import Observed
from pipekit.parity.plain_loop import LEARNING_RATE, Rows, Tensors, total
from pipekit.parity.suite import count as terms_of
from pipekit.parity.suite import loss_of
from pipekit.parity.verdict import Fault

MOST = 24  # microbatches, up to which each is computed alone
REPLICAS = (2, 3, 4, 6, 8)  # that may share a batch
_STALE = Fault.STALE.format("1 update")


def microbatches(e: Observed) -> Iterator[Known]:
    """Yield what batches cut into possible numbers of microbatches may give."""
    rows, counts = e.loop.rows, [count for count in e.candidates if count <= MOST]
    for size in range(-(-rows // MOST), rows) if e.loop.case.odd else ():
        parts = list(pairwise([*range(0, rows, size), rows]))  # the last one has what is left
        yield from _means(e, len(parts), partial(_sum_of_means, e, parts))
    for count in dict.fromkeys((*counts, *REPLICAS)):
        # And as a distributed sampler deals rows out.
        for split in (e.loop.cut(count), [(k, rows, count) for k in range(count)]):
            yield from _means(e, count, partial(_sum_of_means, e, split))
    for count in counts:
        for factor in (1.0, 1 / count):
            said = f"{count} in a batch, each with {factor:.3g} of its mean"
            updates = partial(_one_by_one, e, count, factor)
            yield from multiples(e, Fault.EACH_MICROBATCH, said, updates)
    fault = Fault.BATCH_NORM if e.loop.buffers[0] else Fault.AUXILIARY
    even = [count for count in range(1, MOST + 1) if rows % count == 0]
    for count in even if e.loop.case.coupled else ():
        said = f"of rows that go through in {count} microbatches"
        yield from multiples(e, fault, said, partial(e.loop.expected, microbatches=count))


def _sum_of_means(e: Observed, parts: Sequence[Rows], step: int) -> list[Tensors]:
    passes = (replace(e.loop.whole(step), rows=rows) for rows in parts)
    return [total((1.0, e.loop.run(one).gradients) for one in passes)]


def _means(
    e: Observed, count: int, summed: Basis, what: str = "microbatches or replicas"
) -> Iterator[Known]:
    said = f"each of {count} {what} counts alike, however many terms it has"
    known = {1.0: Fault.SUMMED, count**-2: Fault.AVERAGED_TWICE}
    for (factor,), entries in alike(fit(e, summed)):
        # Next to nothing explains all that is as small: it counts as the factor of all.
        if abs(factor) > (LEAST if len(entries) == len(e.wrong) else NOTHING / count):
            fault = next((f for k, f in known.items() if same(factor, k)), Fault.PER_MICROBATCH)
            by = "" if same(factor, 1 / count) else f"x {factor * count:.4g}; "
            yield Known(fault, by + said, entries)


def _one_by_one(e: Observed, count: int, factor: float, step: int) -> Tensors:
    before = weights = e.loop.weights[step]
    for rows in e.loop.cut(count):
        own = e.loop.run_anew(replace(e.loop.whole(step), rows=rows), weights=weights).gradients
        weights = {n: w - LEARNING_RATE * factor * own[n] for n, w in weights.items()}
    return {n: (before[n] - w) / LEARNING_RATE for n, w in weights.items()}


def counted(e: Observed) -> Iterator[Known]:
    """Yield microbatches that count so many times, perhaps in the next update or on old weights."""
    for count in (count for count in e.candidates if count <= MOST):
        parts = e.loop.cut(count)
        own = cache(partial(_alone, e, parts))
        older = cache(partial(_alone, e, parts, delays=(1,) * e.loop.depth))
        for moved, others in (("", None), (Fault.LATE, partial(_late, own)), (_STALE, older)):
            basis = partial(_both, own, others) if others else own
            name = partial(_of_counts, count, moved=moved)
            yield from named(e, basis, name, behind=moved == _STALE, together=True)
        yield from named(e, own, partial(_of_each_step, count), together=True, each_step=True)
        yield from tied(e, count)


def rows(e: Observed) -> Iterator[Known]:
    """Yield rows that count so many times, of models whose rows do not see one another."""
    parts = e.loop.cut(e.loop.rows)
    if not e.loop.case.coupled:
        yield from _means(e, len(parts), partial(_sum_of_means, e, parts))
        own = cache(partial(_alone, e, parts))
        yield from named(e, own, partial(_of_counts, len(parts)), together=True)
        name = partial(_of_each_step, len(parts))
        yield from named(e, own, name, together=True, each_step=True)


def positions(e: Observed) -> Iterator[Known]:
    """Yield parts of sequences, as ranks share them, that count so many times or all alike."""
    length = e.loop.batches[0][1].shape[-1]

    def of_parts(count: int, step: int) -> list[Tensors]:
        parts = torch.arange(length).tensor_split(count)
        own = (partial(loss_of, (slice(None), part)) for part in parts)
        likes = (replace(e.loop.whole(step), loss=each) for each in own)
        return [e.loop.batch(like, e.parts, anew=True).gradients for like in likes]

    def summed(count: int, step: int) -> list[Tensors]:
        target = e.loop.batches[step][1]
        parts = target.tensor_split(count, -1)
        shares = (e.loop.terms(step) / terms_of(part) for part in parts)
        return [total(zip(shares, of_parts(count, step), strict=True))]

    if e.loop.case.tokens:
        for count in (count for count in range(2, length + 1) if length % count == 0):
            yield from _means(e, count, partial(summed, count), "parts of sequences")
        name = partial(_of_counts, length, what="positions in a row")
        yield from named(e, partial(of_parts, length), name, together=True)


def _alone(e: Observed, parts: Sequence[Rows], step: int, **changed: Any) -> list[Tensors]:
    like = replace(e.loop.whole(step), **changed)
    return [e.loop.batch(like, [rows]).gradients for rows in parts]


def _late(own: Basis, step: int) -> list[Tensors]:
    return [total([(float(step > 0), part)]) for part in own(max(step - 1, 0))]


def _both(one: Basis, other: Basis, step: int) -> list[Tensors]:
    return [*one(step), *other(step)]


def _of_counts(
    count: int, factors: Factors, what: str = "microbatches or rows", moved: str = ""
) -> Named:
    own, others = factors[:count], factors[count:]
    if any(abs(factor) > NOTHING for factor in others or own):
        said = f"of {count} {what} each counts {shown(own)} times"
        if others:
            where = "in the next update" if moved == Fault.LATE else "on the weights before"
            said += f", and {where} {shown(others)} times"
        fault = _fault(own, others, moved)
        if moved in ("", Fault.LATE, fault):  # old weights are in place of the newest
            yield fault, said


def _of_each_step(count: int, factors: Factors) -> Named:
    steps = [factors[k : k + count] for k in range(0, len(factors), count)]
    if all(abs(a - b) < NOTHING for step in steps for a, b in zip(step, steps[0], strict=True)):
        return  # which is said of all steps at once
    if max(map(abs, factors)) < NOTHING:
        return  # too little to count
    fault = Fault.CLIPPED if max(factors) < 1 + NOTHING else Fault.OTHER_LOSS
    if counts := whole(factors):
        fault = Fault.LOST if {*counts} <= {0, 1} else Fault.MICROBATCHES
    if count > MOST and max(factors) > 1 + NOTHING and not same(sum(factors), len(factors)):
        fault = Fault.OTHER_LOSS  # which weights rows by their class, say
    what, said = "microbatches", "; ".join(map(shown, steps))
    if count > MOST:
        what, said = "rows", f"{min(factors):.3g} to {max(factors):.3g}"
    yield fault, f"of {count} {what} each counts, step by step, {said} times"


def _fault(own: Sequence[float], others: Sequence[float], moved: str) -> str:
    there = [k for k, factor in enumerate(own) if abs(factor) > NOTHING]
    if others:
        are_moved = all(abs(a + b - 1) < NOTHING for a, b in zip(own, others, strict=True))
        return moved if are_moved else Fault.KEPT
    if there in ([0], [len(own) - 1]):
        return Fault.ONLY_FIRST if there == [0] else Fault.ONLY_LAST
    if len(there) < len(own):
        once = all(abs(own[k] - 1) < NOTHING for k in there)
        return Fault.LOST if once else Fault.MICROBATCHES
    growth = [b / a for a, b in pairwise(own)] if own[-1] < 1 + NOTHING else [0.0]
    again = all(round(g) >= 1 and abs(g - round(g)) < NOTHING for g in growth)
    return Fault.AVERAGED_TWICE if again else Fault.MICROBATCHES  # the earlier, the more often


def tied(e: Observed, count: int = 1) -> Iterator[Known]:
    """Yield sums over other uses of shared weights, or over the microbatches of each use."""

    def each_use(uses: tuple[str, ...], step: int) -> list[Tensors]:
        parts = [[rows] for rows in e.loop.cut(count)] if count > 1 else [e.parts]
        found = [e.loop.batch(e.loop.whole(step), part).of_use for part in parts]
        return [dict.fromkeys(uses, of_use[use]) for use in uses for of_use in found]

    for uses in {e.loop.uses[entry.name] for entry in e.wrong}:
        if len(uses) > 1:
            yield from named(e, partial(each_use, uses), partial(_of_uses, uses, count))


def _of_uses(uses: Sequence[str], count: int, factors: Factors) -> Named:
    sums = [factors[count * k : count * (k + 1)] for k in range(len(uses))]
    if any(all(abs(factor) < NOTHING for factor in of) for of in sums):
        fault = Fault.TIED_ONCE
    elif max(factors) > 1 + NOTHING:
        fault = Fault.TIED_TWICE
    else:
        lost = any(abs(factor) < NOTHING for factor in factors)
        fault = Fault.LOST if lost else Fault.AVERAGED_TWICE
    if any(abs(factor) > NOTHING for factor in factors):
        said = (f"{shown(of)} of its use as {use}" for of, use in zip(sums, uses, strict=True))
        yield fault, "; ".join(said)
