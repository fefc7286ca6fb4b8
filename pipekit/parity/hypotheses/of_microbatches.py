"""Faults of microbatches: lost, repeated, late, alone, or averaged each by its own terms."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache, partial
from itertools import islice, pairwise

from pipekit.parity import faults
from pipekit.parity.evidence import Evidence
from pipekit.parity.hypotheses.fitted import NOTHING, fitted
from pipekit.parity.hypotheses.hypothesis import Hypothesis
from pipekit.parity.observed import Entry
from pipekit.parity.plain_loop import LEARNING_RATE, Tensors, total

MOST_ALONE = 24  # microbatches, up to which each is computed alone
MOST_COUNTED = 16  # up to which it is found how often each counts


def microbatches(e: Evidence) -> Iterator[Hypothesis]:
    """Yield what batches cut into possible numbers of microbatches may give."""
    for count in e.candidates:
        for factor in (1.0, 1 / count):
            said = f"of {count}, times {factor:.3g}"
            yield Hypothesis(faults.ONLY_LAST, said, partial(_alone, e, count, -1, factor))
            yield Hypothesis(faults.ONLY_FIRST, said, partial(_alone, e, count, 0, factor))
        if count <= MOST_ALONE:
            yield from _means(e, count)
            yield from _other_targets(e, count)
            for factor in (1.0, 1 / count):
                said = f"{count} in a batch, each with {factor:.3g} of its mean"
                yield Hypothesis(
                    faults.EACH_MICROBATCH, said, partial(_one_by_one, e, count, factor)
                )


def together(e: Evidence) -> Iterator[Hypothesis]:
    """Yield other numbers of microbatches, of models whose rows see one another."""
    if e.loop.case.coupled:
        for count in range(1, MOST_ALONE + 1):
            yield Hypothesis(
                faults.BATCH_NORM if e.loop.buffers[0] else faults.AUXILIARY,
                f"of rows that go through in {count} microbatches",
                partial(e.loop.expected, microbatches=count),
            )


def _alone(e: Evidence, count: int, number: int, factor: float, step: int) -> Tensors:
    rows = e.loop.cut(step, count)[number]
    return total([(factor, e.loop.summed(replace(e.loop.whole(step), rows=rows)))])


def _means(e: Evidence, count: int) -> Iterator[Hypothesis]:
    """Yield sums of the microbatches' own means."""

    def predicted(step: int, factor: float) -> Tensors:
        passes = (replace(e.loop.whole(step), rows=rows) for rows in e.loop.cut(step, count))
        return total((factor, e.loop.summed(each)) for each in passes)

    alike = f"each of {count} microbatches counts alike, however many terms it has"
    yield Hypothesis(faults.PER_MICROBATCH, alike, partial(predicted, factor=1 / count))
    yield Hypothesis(faults.SUMMED, f"x {count}; {alike}", partial(predicted, factor=1.0))
    yield Hypothesis(
        faults.AVERAGED_TWICE, f"/ {count}; {alike}", partial(predicted, factor=count**-2)
    )


def _other_targets(e: Evidence, count: int) -> Iterator[Hypothesis]:
    """Yield inputs with the targets of a neighbour."""

    def predicted(step: int, by: int) -> Tensors:
        roll = by * (e.loop.rows(step) // count)
        return e.loop.summed(replace(e.loop.whole(step), roll=roll))

    for by, side in ((1, "before"), (-1, "behind")):
        said = f"the inputs of {count} microbatches with the targets of the one {side}"
        yield Hypothesis(faults.TARGETS, said, partial(predicted, by=by))


def _one_by_one(e: Evidence, count: int, factor: float, step: int) -> Tensors:
    """Return what the updates of a batch add up to, one after each microbatch."""
    before = weights = e.loop.weights[step]
    for rows in e.loop.cut(step, count):
        own = e.loop.summed(replace(e.loop.whole(step), rows=rows), weights)
        weights = {n: w - LEARNING_RATE * factor * own[n] for n, w in weights.items()}
    return {n: (before[n] - w) / LEARNING_RATE for n, w in weights.items()}


def counted(e: Evidence) -> Iterator[Hypothesis]:
    """Yield microbatches that count so many times, in their own update or in the next.

    The fewest microbatches of which all parameters can be are enough; else each layer is asked.
    """
    counts = [count for count in e.candidates if count <= MOST_COUNTED]
    for count in counts:
        if found := list(_counted(e, count, e.wrong)):
            yield from found
            return
    for layer in _layers(e):
        yield from islice((h for count in counts for h in _counted(e, count, layer)), 1)


def _counted(e: Evidence, count: int, entries: Sequence[Entry]) -> Iterator[Hypothesis]:
    @cache
    def own(step: int) -> list[Tensors]:
        return [e.loop.weighted(step, [rows]) for rows in e.loop.cut(step, count)]

    @cache
    def with_late(step: int) -> list[Tensors]:
        late = own(step - 1) if step else [total([(0.0, part)]) for part in own(0)]
        return [*own(step), *late]

    for each in (own, with_late):
        factors = fitted(e, entries, each)
        if factors is not None:
            shown = [f"{factor + 0.0:.2f}" for factor in factors]
            said = f"of {count} microbatches each counts {', '.join(shown[:count])} times"
            if len(factors) > count:
                said += f", and in the next update {', '.join(shown[count:])} times"
            yield Hypothesis(_fault(factors, count), said, partial(_sum_of, factors, each))
            return


def _sum_of(
    factors: Sequence[float], each: Callable[[int], Sequence[Tensors]], step: int
) -> Tensors:
    return total(zip(factors, each(step), strict=True))


def _fault(factors: Sequence[float], count: int) -> str:
    """Return the class of microbatches that count so many times, and so many in the next update."""
    own, late = factors[:count], factors[count:]
    there = [k for k, factor in enumerate(own) if abs(factor) > NOTHING]
    if late:
        moved = all(abs(a + b - 1) < NOTHING for a, b in zip(own, late, strict=True))
        return faults.LATE if moved else faults.KEPT
    if there in ([0], [count - 1]):
        return faults.ONLY_FIRST if there == [0] else faults.ONLY_LAST
    if len(there) < count:
        once = all(abs(own[k] - 1) < NOTHING for k in there)
        return faults.LOST if once else faults.MICROBATCHES
    growth = [b / a for a, b in pairwise(own)]
    again = all(round(g) >= 1 and abs(g - round(g)) < NOTHING for g in growth)
    return faults.AVERAGED_TWICE if again else faults.MICROBATCHES  # the earlier, the more often


def _layers(e: Evidence) -> list[list[Entry]]:
    """Return the wrong entries of each layer, of each rank where these differ."""
    layers: dict[tuple[int | None, int], list[Entry]] = {}
    for entry in e.wrong:
        layers.setdefault((entry.rank, e.loop.layer(entry.name)), []).append(entry)
    return list(layers.values())
