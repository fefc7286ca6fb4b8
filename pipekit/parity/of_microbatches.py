"""Faults of parts of a batch: lost, repeated, late, alone, or averaged each by its own terms."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache, partial
from itertools import pairwise, product
from typing import Any

from torch import Tensor

from pipekit.parity.factors import LEAST, NOTHING, Factors, same, shown, whole
from pipekit.parity.fit import Basis, Known, Named, alike, fit, multiples, named
from pipekit.parity.observed import Observed
from pipekit.parity.of_updates import sometimes
from pipekit.parity.plain_loop import LEARNING_RATE, Pass, Range, Tensors, total
from pipekit.parity.suite import LENGTH, loss
from pipekit.parity.verdict import Fault

MOST = 24  # microbatches, up to which each is computed alone
MOST_SHARED = 8  # microbatches of which each may be in parts of sequences
REPLICAS = (2, 3, 4, 6, 8)  # that may share a batch
_STALE = Fault.STALE.format("1 update")


def microbatches(e: Observed) -> Iterator[Known]:
    """Yield what batches cut into possible numbers of microbatches may give."""
    rows, counts = e.loop.rows, [count for count in e.candidates if count <= MOST]
    for size in range(-(-rows // MOST), rows) if e.loop.case.odd else ():
        # The last one has what is left.
        yield from _means(e, [*map(Pass, pairwise([*range(0, rows, size), rows]))])
    even = [count for count in range(1, MOST + 1) if rows % count == 0 and e.loop.case.coupled]
    for count in dict.fromkeys((*counts, *REPLICAS, *even)):
        yield from _means(e, e.loop.cut(count))
        # As a distributed sampler deals rows out.
        yield from _means(e, [Pass((k, None, count)) for k in range(count)])
    for count in counts:
        for factor in (1.0, 1 / count):
            said = f"{count} in a batch, each with {factor:.3g} of its mean"
            updates = partial(_one_by_one, e, count, factor)
            yield from multiples(e, Fault.EACH_MICROBATCH, said, updates)
            yield from sometimes(e, Fault.EACH_MICROBATCH, updates)


def counted(e: Observed) -> Iterator[Known]:
    """Yield microbatches that count so many times, perhaps in the next update or on old weights."""
    parts = {count: e.loop.cut(count) for count in e.candidates if count <= MOST}
    alone = {count: _each(e, own) for count, own in parts.items()}
    known = [k for each in alone.values() for k in named(e, each, _of_counts, together=True)]
    known += [k for count in parts for k in tied(e, count)]
    yield from known
    # Where these explain all, others would count for nothing.
    explained = any(len(k.covers) == len(e.wrong) for k in known)
    for count, each in () if explained else alone.items():
        late = partial(_with_late, each)
        yield from named(e, late, partial(_of_others, Fault.LATE), together=True)
        older = [replace(part, delays=(1,) * e.loop.depth) for part in parts[count]]
        basis = _each(e, [*parts[count], *older])
        yield from named(e, basis, partial(_of_others, _STALE), behind=1, together=True)
        yield from named(e, each, partial(_of_each_step, count), together=True, each_step=True)


def in_turn(e: Observed) -> Iterator[Known]:
    """Yield microbatches that count so many times, each with the masks that it draws in turn."""
    return named(e, _each(e, e.parts), _of_counts, together=True)


def rows(e: Observed) -> Iterator[Known]:
    """Yield rows that count so many times, of models whose rows do not see one another."""
    if not e.loop.case.coupled:
        parts = e.loop.cut(e.loop.rows)
        yield from _means(e, parts)
        yield from named(e, _each(e, parts), _of_counts, together=True)


def positions(e: Observed) -> Iterator[Known]:
    """Yield parts of sequences, as ranks share them, that count so many times or all alike.

    A rank has neighbours, every second or third position, or one from each end (zigzag, Llama 3,
    arXiv 2407.21783, section 3.3.2), of whole batches or of microbatches.
    """
    if not e.loop.case.tokens:
        return
    dealt: list[list[Range]] = [[(k, LENGTH - k, LENGTH - 2 * k - 1) for k in range(LENGTH // 2)]]
    for count in (n for n in range(2, LENGTH + 1) if LENGTH % n == 0):
        size = LENGTH // count
        dealt += [[(k * size, k * size + size) for k in range(count)]]
        dealt += [[(k, None, count) for k in range(count)]]
    for ranks, count in product(dealt, (1, *(n for n in e.candidates if n <= MOST_SHARED))):
        parts = [replace(part, positions=own) for part in e.loop.cut(count) for own in ranks]
        if all(e.loop.share(step, part) for step in range(e.steps) for part in parts):
            yield from _means(e, parts, "parts of sequences")
    each = _each(e, [Pass(positions=(k, k + 1)) for k in range(LENGTH)])
    yield from named(e, each, partial(_of_counts, what="positions in a row"), together=True)


def _each(e: Observed, parts: Sequence[Pass]) -> Basis:
    """Return what each part of a batch adds to its gradient."""
    alone = [[part] for part in parts]
    if e.loop.case.random:  # all draw their masks
        alone = [
            [replace(p, loss=partial(_times, float(p == one))) for p in parts] for one in parts
        ]
    return cache(lambda step: [e.loop.batch(step, passes).gradients for passes in alone])


def _times(factor: float, output: Any, target: Tensor) -> Tensor:
    return factor * loss(output, target)


def _with_late(own: Basis, step: int) -> list[Tensors]:
    """Return parts, and those of the batch before, which come an update late."""
    return [*own(step), *(total([(float(step > 0), part)]) for part in own(max(step - 1, 0)))]


def _means(
    e: Observed, parts: Sequence[Pass], what: str = "microbatches or replicas"
) -> Iterator[Known]:
    count, steps = len(parts), range(e.steps)
    equal = all(len({e.loop.share(step, part) for part in parts}) == 1 for step in steps)
    if equal and not e.loop.case.coupled:
        return  # it is a multiple of the mean of all
    said = f"each of {count} {what} counts alike, however many terms it has"
    alone = Fault.PER_MICROBATCH
    if equal:
        said = f"of rows that go through in {count} {what}"
        alone = Fault.BATCH_NORM if e.loop.buffers[0] else Fault.AUXILIARY
    known = {1.0: Fault.SUMMED, count**-2: Fault.AVERAGED_TWICE, 1 / count: alone}
    summed = fit(e, lambda s: [total((1.0, e.loop.run(s, part).gradients) for part in parts)])
    for (factor,), entries in alike(summed):
        # Next to nothing explains all that is as small: it counts as the factor of all.
        if abs(factor) > (LEAST if len(entries) == len(e.wrong) else NOTHING / count):
            fault = next((f for k, f in known.items() if same(factor, k)), alone)
            by = "" if same(factor, 1 / count) else f"x {factor * count:.4g}; "
            yield Known(fault, by + said, entries)


def _one_by_one(e: Observed, count: int, factor: float, step: int) -> Tensors:
    before = weights = e.loop.weights[step]
    for part in e.loop.cut(count):
        own = e.loop.run_anew(step, part, weights).gradients
        weights = {n: w - LEARNING_RATE * factor * own[n] for n, w in weights.items()}
    return {n: (before[n] - w) / LEARNING_RATE for n, w in weights.items()}


def _of_counts(factors: Factors, what: str = "microbatches or rows") -> Named:
    if any(abs(factor) > NOTHING for factor in factors):
        yield _of_these(factors), f"of {len(factors)} {what} each counts {shown(factors)} times"


def _of_others(fault: str, factors: Factors) -> Named:
    count = len(factors) // 2
    own, others = factors[:count], factors[count:]
    in_place = all(abs(a + b - 1) < NOTHING for a, b in zip(own, others, strict=True))
    # Old weights are in place of the newest.
    if any(abs(factor) > NOTHING for factor in others) and (in_place or fault == Fault.LATE):
        where = "in the next update" if fault == Fault.LATE else "on the weights before"
        said = f"of {count} microbatches or rows each counts {shown(own)} times"
        yield fault if in_place else Fault.KEPT, f"{said}, and {where} {shown(others)} times"


def _of_these(factors: Factors) -> str:
    there = [k for k, factor in enumerate(factors) if abs(factor) > NOTHING]
    if there in ([0], [len(factors) - 1]):
        return Fault.ONLY_FIRST if there == [0] else Fault.ONLY_LAST
    if len(there) < len(factors):
        once = all(abs(factors[k] - 1) < NOTHING for k in there)
        return Fault.LOST if once else Fault.MICROBATCHES
    growth = [b / a for a, b in pairwise(factors)] if factors[-1] < 1 + NOTHING else [0.0]
    again = all(round(g) >= 1 and abs(g - round(g)) < NOTHING for g in growth)
    return Fault.AVERAGED_TWICE if again else Fault.MICROBATCHES  # the earlier, the more often


def _of_each_step(count: int, factors: Factors) -> Named:
    steps = [factors[k : k + count] for k in range(0, len(factors), count)]
    alike = all(abs(a - b) < NOTHING for s in steps for a, b in zip(s, steps[0], strict=True))
    if not alike and max(map(abs, factors)) > NOTHING:  # else it is said of all steps at once
        counts = {*whole(factors)}
        fault = Fault.MICROBATCHES if counts or max(factors) > 1 + NOTHING else Fault.CLIPPED
        said = f"of {count} microbatches each counts, step by step, {'; '.join(map(shown, steps))}"
        yield Fault.LOST if counts and counts <= {0, 1} else fault, f"{said} times"


def tied(e: Observed, count: int = 1) -> Iterator[Known]:
    """Yield sums over other uses of shared weights, or over the microbatches of each use."""
    cut = [[part] for part in e.loop.cut(count)] if count > 1 else [e.parts]

    def each_use(uses: tuple[str, ...], step: int) -> list[Tensors]:
        found = [e.loop.batch(step, parts).of_use for parts in cut]
        return [dict.fromkeys(uses, of_use[use]) for use in uses for of_use in found]

    def name(uses: tuple[str, ...], factors: Factors) -> Named:
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

    for uses in {e.loop.uses[entry.name] for entry in e.wrong}:
        if len(uses) > 1:
            yield from named(e, partial(each_use, uses), partial(name, uses))
