"""Classes of fault as predictions: the gradients that each would give to SGD.

A hypothesis explains a parameter if its prediction is within the tolerance in every step.  Numbers
in it, say a factor, are first read off the trainer's own values; the prediction then stands for
all their elements.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from pipekit.parity import faults
from pipekit.parity.evidence import Evidence, Prediction
from pipekit.parity.fitted import fitted
from pipekit.parity.observed import Entry
from pipekit.parity.plain_loop import LEARNING_RATE, Tensors, total
from pipekit.parity.ratios import by_ratio, of_all

MOST_ALONE = 60  # microbatches, up to which each is computed alone


@dataclass(frozen=True)
class Hypothesis:
    """A class of fault, in words, and what it predicts.

    Attributes:
        fault: the class.
        detail: what about this one.
        predicts: the gradients of each step.
        entries: those that it is about; None: any.
        behind: the most updates by which gradients are stale.
    """

    fault: str
    detail: str
    predicts: Prediction
    entries: frozenset[str] | None = None
    behind: int = 0


def hypotheses(e: Evidence) -> Iterator[Hypothesis]:
    """Yield all that can be said of the wrong entries, the special before the general."""
    for source in (_tied, _frozen, _left_out, _scaled, _microbatches, _in_time, _of_the_update):
        yield from source(e)


def _said(
    fault: str, detail: str, predicts: Callable[[int], Tensors], behind: int = 0
) -> Hypothesis:
    return Hypothesis(fault, detail, Prediction(predicts), behind=behind)


def _tied(e: Evidence) -> Iterator[Hypothesis]:
    """Yield sums over other uses of a shared weight."""
    shared = [entry for entry in e.wrong if len(e.loop.uses[entry.name]) > 1]
    factors = {entry.name: fitted(e, [entry], partial(_each_use, e, entry.name)) for entry in shared}
    known = {name: found for name, found in factors.items() if found is not None}
    if known and len(known) == len(factors):
        once = any(abs(factor) < 0.01 for found in known.values() for factor in found)
        counts = "; ".join(
            f"{name} counts "
            + ", ".join(f"{use} {f:.3g} times" for use, f in zip(e.loop.uses[name], found))
            for name, found in known.items()
        )

        def predicted(step: int) -> Tensors:
            sums = (total(zip(f, _each_use(e, name, step))) for name, f in known.items())
            return {n: g for found in (e.raw(step), *sums) for n, g in found.items()}

        fault = faults.TIED_ONCE if once else faults.TIED_TWICE
        yield Hypothesis(fault, counts, Prediction(predicted), frozenset(known))


def _each_use(e: Evidence, name: str, step: int) -> list[Tensors]:
    """Return the gradient of each use of a weight, under one of its names."""
    parts = e.loop.cut(step, e.microbatches or 1)
    passes = [(e.loop.share(step, r), e.loop.run(replace(e.loop.whole(step), rows=r))) for r in parts]
    return [
        {name: torch.stack([share * found.gradients[use] for share, found in passes]).sum(0)}
        for use in e.loop.uses[name]
    ]


def _frozen(e: Evidence) -> Iterator[Hypothesis]:
    names = frozenset(e.loop.frozen)
    if names:
        own = {entry.name: entry.values for entry in e.wrong if entry.name in names}
        predicted = lambda step: e.right(step) | {n: values[step] for n, values in own.items()}
        yield Hypothesis(faults.FROZEN, "", Prediction(predicted), names)


def _left_out(e: Evidence) -> Iterator[Hypothesis]:
    """Yield the model without the layers that nobody has, or that get no gradients."""
    trained = {n for n in e.loop.uses if n not in e.loop.frozen}
    silent = {n.name for n in e.wrong if not any(v.any() for v in n.values[: e.steps])}
    silent |= set(e.observed.missing)
    absent = {e.loop.layer(n) for n in silent} - {e.loop.layer(n) for n in trained - silent}
    if absent:
        which = f"layers {', '.join(map(str, sorted(absent)))} of the model"
        like = lambda step: replace(e.loop.whole(step), without=frozenset(absent))
        try:
            e.loop.run(like(0))
        except (RuntimeError, TypeError, ValueError):  # the layers around do not fit one another
            return
        yield _said(
            faults.MISSING,
            f"as if {which} were not there",
            lambda step: e.loop.summed(like(step)) | {n: 0 * e.raw(step)[n] for n in silent},
        )


def _scaled(e: Evidence) -> Iterator[Hypothesis]:
    for fault, detail, factors in (*by_ratio(e), *of_all(e)):
        yield _said(
            fault,
            detail,
            lambda step, factors=factors: {  # type: ignore[misc]
                n: factors(n, step) * g for n, g in e.raw(step).items()
            },
        )


def _microbatches(e: Evidence) -> Iterator[Hypothesis]:
    """Yield sums in which microbatches count otherwise than by their share."""
    for count in e.candidates:
        for number, fault in ((-1, faults.ONLY_LAST), (0, faults.ONLY_FIRST)):
            alone = lambda step, count=count, number=number: e.loop.summed(  # type: ignore[misc]
                replace(e.loop.whole(step), rows=e.loop.cut(step, count)[number])
            )
            for factor in (1.0, 1 / count):
                predicted = lambda step, f=factor, a=alone: total([(f, a(step))])  # type: ignore[misc]
                yield _said(fault, f"of {count}, times {factor:.3g}", predicted)
        if count > MOST_ALONE:
            continue
        yield _said(
            faults.PER_MICROBATCH,
            f"each of {count} microbatches counts alike, however many terms it has",
            lambda step, count=count: _mean_of_means(e, step, count),  # type: ignore[misc]
        )
        yield from _each_counted(e, count)
        yield _said(
            faults.TARGETS,
            f"the inputs of {count} microbatches with the targets of the one before",
            lambda step, count=count: e.loop.summed(  # type: ignore[misc]
                replace(e.loop.whole(step), roll=e.loop.rows(step) // count)
            ),
        )
        for factor in (1.0, 1 / count):
            yield _said(
                faults.EACH_MICROBATCH,
                f"{count} in a batch, each with {factor:.3g} of its mean",
                lambda step, c=count, f=factor: _one_by_one(e, step, c, f),  # type: ignore[misc]
            )


def _mean_of_means(e: Evidence, step: int, count: int) -> Tensors:
    passes = (replace(e.loop.whole(step), rows=rows) for rows in e.loop.cut(step, count))
    return total((1 / count, e.loop.summed(each)) for each in passes)


def _each_counted(e: Evidence, count: int) -> Iterator[Hypothesis]:
    if count > 16:
        return

    def each(step: int) -> list[Tensors]:
        parts = e.loop.cut(step, count)
        return [
            total([(e.loop.share(step, r), e.loop.summed(replace(e.loop.whole(step), rows=r)))])
            for r in parts
        ]

    for entries in _groups(e):
        factors = fitted(e, entries, each)
        if factors is None or max(factors) - min(factors) < 0.01:
            continue
        lost = [k for k, f in enumerate(factors, start=1) if abs(f) < 0.01]
        powers = torch.tensor([f for f in factors if f > 0]).log()
        if lost and all(abs(f - 1) < 0.01 or abs(f) < 0.01 for f in factors):
            fault = faults.LOST
        elif not lost and (powers.diff() > -0.01).all() and len(powers) == count:
            fault = faults.AVERAGED_TWICE  # the earlier, the more often
        else:
            fault = faults.MICROBATCHES
        counts = ", ".join(f"{f:.3g}" for f in factors)
        yield _said(
            fault,
            f"of {count} microbatches each counts {counts} times",
            lambda step, factors=factors: total(zip(factors, each(step))),  # type: ignore[misc]
        )


def _groups(e: Evidence) -> list[list[Entry]]:
    """Return the wrong entries together, and those of each layer."""
    layers: dict[tuple[int | None, int], list[Entry]] = {}
    for entry in e.wrong:
        layers.setdefault((entry.rank, e.loop.layer(entry.name)), []).append(entry)
    return [e.wrong, *layers.values()] if len(layers) > 1 else [e.wrong]


def _one_by_one(e: Evidence, step: int, count: int, factor: float) -> Tensors:
    """Return what all updates of a batch add up to."""
    rates = [(factor, rows) for rows in e.loop.cut(step, count)]
    before, weights = e.loop.weights[step], e.loop.weights[step]
    for rate, rows in rates:
        own = e.loop.summed(replace(e.loop.whole(step), rows=rows), weights)
        weights = {n: w - LEARNING_RATE * rate * own[n] for n, w in weights.items()}
    return {n: (before[n] - w) / LEARNING_RATE for n, w in weights.items()}


def _in_time(e: Evidence) -> Iterator[Hypothesis]:
    """Yield gradients of other weight versions and of other batches."""
    for k in range(1, e.steps):
        most = " or more" if k == e.steps - 1 else ""
        yield _said(
            faults.STALE.format(f"{k} update{'s' * (k > 1)}"),
            f"every stage reads the weights of {k} updates before{most}",
            lambda step, k=k: e.loop.weighted(  # type: ignore[misc]
                step, e.loop.cut(step, e.microbatches or 1), e.loop.whole(step, delay=k)
            ),
            behind=k,
        )
    if e.stage_of is not None and e.stages is not None and e.stages > 1:
        yield from _staggered(e, e.stage_of, e.stages)
    yield _said(
        faults.LATE,
        "each update applies the gradient of the one before",
        lambda step: e.raw(step - 1) if step else total([(0.0, e.raw(0))]),
    )
    yield _said(
        faults.EARLIER_BATCH,
        "each update is of the batch before, on the newest weights",
        lambda step: e.loop.summed(
            replace(e.loop.whole(max(step - 1, 0)), forward=(step,) * e.loop.depth)
        ),
    )


def _staggered(e: Evidence, stage_of: Sequence[int], stages: int) -> Iterator[Hypothesis]:
    """Yield PipeDream's versions, with and without stashing, and PACI's."""
    delays = [stages - 1 - stage for stage in stage_of]
    name = faults.STALE.format(f"up to {stages - 1} updates")

    def versions(step: int, behind: Sequence[int]) -> tuple[int, ...]:
        return tuple(max(step - delay, 0) for delay in behind)

    for stashed, word in ((True, "and keeps them"), (False, "its backward the newest")):
        yield _said(
            name,
            f"the stage before the last reads weights one update old, and so on, {word}",
            lambda step, stashed=stashed: e.loop.summed(  # type: ignore[misc]
                replace(
                    e.loop.whole(step),
                    forward=versions(step, delays),
                    backward=None if stashed else (step,) * e.loop.depth,
                )
            ),
            behind=stages - 1,
        )
    for count in e.candidates[: MOST_ALONE // 4]:
        behind = lambda step, k, c=count: tuple(  # type: ignore[misc]
            max(step * c + k - delay, 0) // c for delay in delays
        )
        yield _said(
            faults.STALE.format(f"up to {-(-(stages - 1) // count)} updates"),
            f"each of {count} microbatches reads what is there, its backward the newest",
            lambda step, c=count, b=behind: total(  # type: ignore[misc]
                (
                    e.loop.share(step, rows),
                    e.loop.summed(
                        replace(
                            e.loop.whole(step),
                            rows=rows,
                            forward=b(step, k),
                            backward=(step,) * e.loop.depth,
                        )
                    ),
                )
                for k, rows in enumerate(e.loop.cut(step, c))
            ),
            behind=-(-(stages - 1) // count),
        )


def _of_the_update(e: Evidence) -> Iterator[Hypothesis]:
    """Yield what an optimizer adds to a gradient, and what a loss adds to another."""
    if not e.wrong:
        return
    own = {entry.name: entry.values for entry in e.wrong}
    before = lambda step: [{n: v[step - 1] if step else 0 * v[0] for n, v in own.items()}]
    for added, fault, detail in (
        (before, None, "each update adds {:.3g} of the one before"),
        (lambda step: [e.loop.weights[step]], faults.DECAY, "{:.3g} of the weight is added"),
        (lambda step: [_auxiliary(e, step)], faults.AUXILIARY, "{:.3g} of it is added"),
    ):
        factors = fitted(e, e.wrong, added, beside=e.raw)
        if factors is None:
            continue
        (factor,) = factors
        shares = {1.0, *(1 / count for count in e.candidates)}
        kept = any(abs(factor - share) < 1e-3 for share in shares)
        for each in [fault] if fault else [faults.KEPT, faults.MOMENTUM][: 1 + (factor < 0.99)][not kept :]:
            yield _said(
                each,
                detail.format(factor),
                lambda step, a=added, f=factor: _plus(e.raw(step), f, a(step)[0]),  # type: ignore[misc]
            )


def _plus(gradients: Tensors, factor: float, added: Tensors) -> Tensors:
    return {n: g + factor * added[n] if n in added else g for n, g in gradients.items()}


def _auxiliary(e: Evidence, step: int) -> Tensors:
    """Return the gradient of the auxiliary loss alone."""
    parts = e.loop.cut(step, e.microbatches or 1)
    without = e.loop.weighted(step, parts, replace(e.loop.whole(step), auxiliary=0.0))
    return total([(1.0, e.raw(step)), (-1.0, without)])
