"""Faults of microbatches: lost, repeated, late, alone, or averaged each by its own terms."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache, partial
from itertools import groupby, pairwise

from pipekit.parity import faults
from pipekit.parity.evidence import Evidence, Factors
from pipekit.parity.hypothesis import NOTHING, Hypothesis, each, passing, same, times
from pipekit.parity.plain_loop import LEARNING_RATE, Rows, Tensors, total

MOST = 24  # microbatches, up to which each is computed alone
REPLICAS = (2, 3, 4, 6, 8)  # that may share a batch
Cut = Callable[[int], Sequence[Rows]]
"""The parts of a step's batch."""


def microbatches(e: Evidence) -> Iterator[Hypothesis]:
    """Yield what batches cut into possible numbers of microbatches may give."""
    for count in dict.fromkeys((*e.candidates, *REPLICAS)):
        if count <= MOST:
            yield _means(e, count, partial(e.loop.cut, microbatches=count))
            yield _means(e, count, partial(_strided, e, count))
    for count in (count for count in e.candidates if count <= MOST):
        for by, side in ((1, "before"), (-1, "behind")):
            said = f"the inputs of {count} microbatches with the targets of the one {side}"
            yield _shifted(e, said, (by * (e.loop.rows(0) // count), 0))
        for factor in (1.0, 1 / count):
            said = f"{count} in a batch, each with {factor:.3g} of its mean"
            updates = partial(_one_by_one, e, count, factor)
            yield Hypothesis(updates, times(faults.EACH_MICROBATCH, said))
    if e.loop.case.tokens:
        yield _shifted(e, "labels of one token further", (0, 1))


def together(e: Evidence) -> Iterator[Hypothesis]:
    """Yield other numbers of microbatches, of models whose rows see one another."""
    fault = faults.BATCH_NORM if e.loop.buffers[0] else faults.AUXILIARY
    for count in range(1, MOST + 1) if e.loop.case.coupled else ():
        expected = cache(partial(e.loop.expected, microbatches=count))
        said = f"of rows that go through in {count} microbatches"
        yield Hypothesis(lambda step, of=expected: [of(step)], times(fault, said))  # type: ignore[misc]


def _strided(e: Evidence, count: int, step: int) -> list[Rows]:
    """Return the rows of each replica, as a distributed sampler deals them out."""
    return [(k, e.loop.rows(step), count) for k in range(count)]


def _means(e: Evidence, count: int, cut: Cut) -> Hypothesis:
    """Return the sum of the parts' own means, however many terms each has."""

    def summed(step: int) -> list[Tensors]:
        passes = (replace(e.loop.whole(step), rows=rows) for rows in cut(step))
        return [total((1.0, e.loop.summed(one)) for one in passes)]

    def name(factors: Factors) -> Iterator[tuple[str, str]]:
        (factor,) = factors
        said = f"each of {count} microbatches or replicas counts alike, however many terms it has"
        known = {
            1 / count: faults.PER_MICROBATCH,
            1.0: faults.SUMMED,
            count**-2: faults.AVERAGED_TWICE,
        }
        if abs(factor) > NOTHING / count:
            fault = next((f for k, f in known.items() if same(factor, k)), faults.PER_MICROBATCH)
            yield fault, said if same(factor, 1 / count) else f"x {factor * count:.4g}; {said}"

    return Hypothesis(summed, each(name))


def _shifted(e: Evidence, said: str, targets: tuple[int, int]) -> Hypothesis:
    like = lambda step: replace(e.loop.whole(step), targets=targets)  # noqa: E731
    return passing(e, faults.TARGETS, said, like)


def _one_by_one(e: Evidence, count: int, factor: float, step: int) -> list[Tensors]:
    """Return what the updates of a batch add up to, one after each microbatch."""
    before = weights = e.loop.weights[step]
    for rows in e.loop.cut(step, count):
        own = e.loop.summed(replace(e.loop.whole(step), rows=rows), weights)
        weights = {n: w - LEARNING_RATE * factor * own[n] for n, w in weights.items()}
    return [{n: (before[n] - w) / LEARNING_RATE for n, w in weights.items()}]


def counted(e: Evidence, count: int) -> Iterator[Hypothesis]:
    """Yield microbatches that count so many times, in their own update or in the next."""
    own = cache(partial(_alone, e, partial(e.loop.cut, microbatches=count)))

    def with_late(step: int) -> list[Tensors]:
        late = own(step - 1) if step else [total([(0.0, part)]) for part in own(0)]
        return [*own(step), *late]

    yield Hypothesis(own, each(partial(_named, count)), together=True)
    yield Hypothesis(with_late, each(partial(_named, count)), together=True)


def rows(e: Evidence) -> Iterator[Hypothesis]:
    """Yield rows that count so many times, of models whose rows do not see one another."""
    count = e.loop.rows(0)
    if not e.loop.case.coupled:
        own = partial(_alone, e, lambda step: [(k, k + 1) for k in range(count)])
        yield Hypothesis(own, each(partial(_named, count)), together=True)


def _alone(e: Evidence, cut: Cut, step: int) -> list[Tensors]:
    return [e.loop.weighted(step, [rows]) for rows in cut(step)]


def _named(count: int, factors: Factors) -> Iterator[tuple[str, str]]:
    """Yield the class of parts that count so many times, and so many in the next update."""
    own, late = factors[:count], factors[count:]
    if any(abs(factor) > NOTHING for factor in late or own):
        said = f"of {count} microbatches or rows each counts {_shown(own)} times"
        if late:
            said += f", and in the next update {_shown(late)} times"
        yield _fault(own, late), said


def _shown(factors: Sequence[float]) -> str:
    runs = [(value, len([*run])) for value, run in groupby(f"{f + 0.0:.2f}" for f in factors)]
    return ", ".join(f"{n} x {value}" if n > 4 else ", ".join([value] * n) for value, n in runs)


def _fault(own: Sequence[float], late: Sequence[float]) -> str:
    there = [k for k, factor in enumerate(own) if abs(factor) > NOTHING]
    if late:
        moved = all(abs(a + b - 1) < NOTHING for a, b in zip(own, late, strict=True))
        return faults.LATE if moved else faults.KEPT
    if there in ([0], [len(own) - 1]):
        return faults.ONLY_FIRST if there == [0] else faults.ONLY_LAST
    if len(there) < len(own):
        once = all(abs(own[k] - 1) < NOTHING for k in there)
        return faults.LOST if once else faults.MICROBATCHES
    growth = [b / a for a, b in pairwise(own)]
    again = all(round(g) >= 1 and abs(g - round(g)) < NOTHING for g in growth)
    return faults.AVERAGED_TWICE if again else faults.MICROBATCHES  # the earlier, the more often
