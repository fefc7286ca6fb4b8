"""Faults in time: older weights, older gradients, older batches; and what an optimizer adds."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

from pipekit.parity import faults
from pipekit.parity.evidence import Evidence
from pipekit.parity.hypotheses.fitted import fitted
from pipekit.parity.hypotheses.hypothesis import Hypothesis
from pipekit.parity.plain_loop import Tensors, total

MOST_READ = 16  # microbatches, up to which each may read weights of its own


def in_time(e: Evidence) -> Iterator[Hypothesis]:
    """Yield gradients of other weight versions and of other batches."""
    for k in range(1, e.steps):
        said = f"every stage reads the weights of {_updates(k)} before"
        said += " or of more" if k == e.steps - 1 else ""
        yield Hypothesis(faults.STALE.format(_updates(k)), said, partial(_stale, e, k), behind=k)
    if e.stage_of is not None and e.stages is not None and e.stages > 1:
        delays = [e.stages - 1 - stage for stage in e.stage_of]
        yield from _staggered(e, delays)
        yield from _as_they_come(e, delays)
    yield Hypothesis(
        faults.LATE,
        "each update applies the gradient of the one before",
        lambda step: e.raw(step - 1) if step else total([(0.0, e.raw(0))]),
    )
    yield Hypothesis(
        faults.EARLIER_BATCH,
        "each update is of the batch before, on the newest weights",
        lambda step: e.loop.summed(
            replace(e.loop.whole(max(step - 1, 0)), forward=(step,) * e.loop.depth)
        ),
    )


def _updates(k: int) -> str:
    return f"{k} update{'s' * (k > 1)}"


def _stale(e: Evidence, k: int, step: int) -> Tensors:
    parts = e.loop.cut(step, e.microbatches or 1)
    return e.loop.weighted(step, parts, e.loop.whole(step, delay=k))


def _staggered(e: Evidence, delays: Sequence[int]) -> Iterator[Hypothesis]:
    """Yield PipeDream's versions (PipeDream, 3.4), with and without stashing."""

    def predicted(step: int, stashing: bool) -> Tensors:
        forward = tuple(max(step - delay, 0) for delay in delays)
        backward = None if stashing else (step,) * e.loop.depth
        like = replace(e.loop.whole(step), forward=forward, backward=backward)
        return e.loop.weighted(step, e.loop.cut(step, e.microbatches or 1), like)

    most = max(delays)
    for stashing, said in (
        (True, "the same in its backward"),
        (False, "the newest in its backward"),
    ):
        yield Hypothesis(
            faults.STALE.format(f"up to {_updates(most)}"),
            f"each stage reads one update older than the next in its forward, {said}",
            partial(predicted, stashing=stashing),
            behind=most,
        )


def _as_they_come(e: Evidence, delays: Sequence[int]) -> Iterator[Hypothesis]:
    """Yield forwards on whatever version is there, as PACI's (arXiv 2606.07881, 3)."""

    def predicted(step: int, count: int) -> Tensors:
        newest, sums = (step,) * e.loop.depth, []
        for k, rows in enumerate(e.loop.cut(step, count)):
            forward = tuple(max(step * count + k - delay, 0) // count for delay in delays)
            like = replace(e.loop.whole(step), forward=forward, backward=newest)
            sums.append((1.0, e.loop.weighted(step, [rows], like)))
        return total(sums)

    for count in e.candidates:
        if count <= MOST_READ:
            most = -(-max(delays) // count)
            yield Hypothesis(
                faults.STALE.format(f"up to {_updates(most)}"),
                f"the forwards of {count} microbatches read what is there, backwards the newest",
                partial(predicted, count=count),
                behind=most,
            )


def of_the_update(e: Evidence) -> Iterator[Hypothesis]:
    """Yield what an optimizer does to gradients or adds, and an auxiliary loss in other weight."""
    own = {entry.name: entry.values for entry in e.wrong}
    most = max(float(v.abs().max()) for values in own.values() for v in values[: e.steps])
    if most:
        yield Hypothesis(
            faults.CLIPPED,
            f"each number to {most:.4g}",
            lambda step: {n: g.clamp(-most, most) for n, g in e.raw(step).items()},
        )

    def before(step: int) -> Tensors:
        return {n: v[step - 1] if step else 0 * v[0] for n, v in own.items()}

    def plus(step: int, factor: float, added: Callable[[int], Tensors]) -> Tensors:
        more = added(step)
        return {n: g + factor * more[n] if n in more else g for n, g in e.raw(step).items()}

    sources = (
        ("", before, "of the update before"),
        (faults.DECAY, e.loop.weights.__getitem__, "of the weight"),
        (faults.AUXILIARY, partial(_auxiliary, e), "of the auxiliary loss"),
    )
    for fault, added, what in sources:
        factors = fitted(e, e.wrong, lambda step: [added(step)], beside=e.raw)  # noqa: B023
        if factors is not None:
            for name in [fault] if fault else _kept(e, factors[0]):
                said = f"{factors[0]:.3g} {what} is added"
                yield Hypothesis(name, said, partial(plus, factor=factors[0], added=added))


def _kept(e: Evidence, factor: float) -> list[str]:
    """Return what it may be that an update has so much of the one before."""
    shares = [1.0, *(1 / count for count in e.candidates)]
    kept = [faults.KEPT] if any(abs(factor - share) < 1e-3 for share in shares) else []
    return [*kept, faults.MOMENTUM] if factor < 0.999 else kept


def _auxiliary(e: Evidence, step: int) -> Tensors:
    """Return the gradient of the auxiliary loss alone."""
    parts = e.loop.cut(step, e.microbatches or 1)
    without = e.loop.weighted(step, parts, replace(e.loop.whole(step), auxiliary=0.0))
    return total([(1.0, e.raw(step)), (-1.0, without)])
