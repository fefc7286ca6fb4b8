"""Faults in time: older weights, older gradients, older batches; and what an optimizer adds."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from pipekit.parity import faults
from pipekit.parity.evidence import Evidence, Factors, Prediction
from pipekit.parity.hypothesis import NOTHING, Hypothesis, each, passing, times
from pipekit.parity.plain_loop import Pass, Tensors, total

MOST_READ = 16  # microbatches, up to which each may read weights of its own
_OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "Adam": torch.optim.Adam,
    "RMSprop": torch.optim.RMSprop,
    "Adagrad": torch.optim.Adagrad,
    "Rprop": torch.optim.Rprop,
    "SGD with Nesterov's momentum": partial(torch.optim.SGD, momentum=0.9, nesterov=True),
}


def in_time(e: Evidence) -> Iterator[Hypothesis]:
    """Yield gradients of other weight versions and of other batches."""
    for k in range(1, e.steps):
        said = f"every stage reads the weights of {_updates(k)} before"
        said += " or of more" if k == e.steps - 1 else ""
        older = partial(e.loop.whole, delay=k)
        yield passing(e, faults.STALE.format(_updates(k)), said, older, behind=k)
    if e.stage_of is not None and e.stages is not None and e.stages > 1:
        delays = [e.stages - 1 - stage for stage in e.stage_of]
        yield from _staggered(e, delays)
        yield from _as_they_come(e, delays)
    said = "each update applies the gradient of the one before"
    yield _one(lambda s: total([(float(s > 0), e.raw(max(s - 1, 0)))]), faults.LATE, said)
    said = "each update is of the batch before, on the newest weights"
    newest = lambda s: replace(e.loop.whole(max(s - 1, 0)), forward=(s,) * e.loop.depth)  # noqa: E731
    yield passing(e, faults.EARLIER_BATCH, said, newest)
    for k in range(2, e.steps // 2 + 1):
        yield _one(partial(_every, e, k), faults.SEVERAL_BATCHES, f"every {k} batches")


def _one(predicts: Prediction, fault: str, said: str, behind: int = 0) -> Hypothesis:
    return Hypothesis(lambda step: [predicts(step)], times(fault, said), behind=behind)


def _updates(k: int) -> str:
    return f"{k} update{'s' * (k > 1)}"


def _every(e: Evidence, k: int, step: int) -> Tensors:
    now = float((step + 1) % k == 0)
    return total((now, e.raw(s)) for s in range(max(step - k + 1, 0), step + 1))


def _staggered(e: Evidence, delays: Sequence[int]) -> Iterator[Hypothesis]:
    """Yield PipeDream's versions (PipeDream, 3.4), with and without stashing."""

    def like(step: int, stashing: bool) -> Pass:
        forward = tuple(max(step - delay, 0) for delay in delays)
        backward = None if stashing else (step,) * e.loop.depth
        return replace(e.loop.whole(step), forward=forward, backward=backward)

    most = max(delays)
    fault = faults.STALE.format(f"up to {_updates(most)}")
    for stashing, read in ((True, "the same"), (False, "the newest")):
        said = "each stage reads one update older than the next in its forward, "
        said += f"{read} in its backward"
        yield passing(e, fault, said, partial(like, stashing=stashing), most)


def _as_they_come(e: Evidence, delays: Sequence[int]) -> Iterator[Hypothesis]:
    """Yield forwards on whatever version is there, as PACI's (arXiv 2606.07881, 3)."""

    def predicted(step: int, count: int) -> Tensors:
        newest, sums = (step,) * e.loop.depth, []
        for k, rows in enumerate(e.loop.cut(step, count)):
            forward = tuple(max(step * count + k - delay, 0) // count for delay in delays)
            like = replace(e.loop.whole(step), forward=forward, backward=newest)
            sums.append((1.0, e.loop.weighted(step, [rows], like)))
        return total(sums)

    for count in (count for count in e.candidates if count <= MOST_READ):
        most = -(-max(delays) // count)
        said = f"the forwards of {count} microbatches read what is there, backwards the newest"
        fault = faults.STALE.format(f"up to {_updates(most)}")
        yield _one(partial(predicted, count=count), fault, said, most)


def of_the_update(e: Evidence) -> Iterator[Hypothesis]:
    """Yield what an optimizer does to gradients or adds, and an auxiliary loss in other weight."""
    own = {entry.name: entry.values for entry in e.wrong}
    most = max(float(v.abs().max()) for values in own.values() for v in values[: e.steps])
    if most:
        clamped: Prediction = lambda step: {n: g.clamp(-most, most) for n, g in e.raw(step).items()}  # noqa: E731
        yield _one(clamped, faults.CLIPPED, f"each number to {most:.4g}")

    def before(step: int) -> Tensors:
        return {n: v[step - 1] if step else 0 * v[0] for n, v in own.items()}

    def added(what: str, fault: str) -> Any:
        def name(factors: Factors) -> Iterator[tuple[str, str]]:
            if abs(factors[0]) > NOTHING / 100:
                for each_fault in [fault] if fault else _kept(e, factors[0]):
                    yield each_fault, f"{factors[0]:.3g} {what} is added"

        return each(name)

    weights = e.loop.weights.__getitem__
    for predicts, fault, what in (
        (before, "", "of the update before"),
        (weights, faults.DECAY, "of the weight"),
        (partial(_auxiliary, e), faults.AUXILIARY, "of the auxiliary loss"),
    ):
        basis = lambda step, predicts=predicts: [predicts(step)]  # noqa: E731
        yield Hypothesis(basis, added(what, fault), beside=e.raw)


def _kept(e: Evidence, factor: float) -> Iterable[str]:
    """Return what it may be that an update has so much of the one before."""
    shares = [1.0, *(1 / count for count in e.candidates)]
    kept = [faults.KEPT] if any(abs(factor - share) < 1e-3 for share in shares) else []
    return [*kept, faults.MOMENTUM] if factor < 0.999 else kept


def _auxiliary(e: Evidence, step: int) -> Tensors:
    """Return the gradient of the auxiliary loss alone."""
    like = replace(e.loop.whole(step), auxiliary=0.0)
    return total([(1.0, e.raw(step)), (-1.0, e.loop.weighted(step, e.parts(step), like))])


def other_optimizers(e: Evidence) -> Iterator[Hypothesis]:
    """Yield what other optimizers of torch's make of the right gradients, at any learning rate."""
    for name, how in _OPTIMIZERS.items():
        updates = _updates_of(e, how)
        basis = lambda step, updates=updates: [updates[step]]  # noqa: E731
        yield Hypothesis(basis, times(faults.OPTIMIZER, name), rough=True)


def _updates_of(e: Evidence, how: Callable[..., torch.optim.Optimizer]) -> list[Tensors]:
    weights = {n: torch.zeros_like(g) for n, g in e.raw(0).items()}
    optimizer, updates = how(weights.values(), lr=1.0), []
    for step in range(e.steps):
        before = {n: w.clone() for n, w in weights.items()}
        for name, gradient in e.raw(step).items():
            weights[name].grad = gradient
        optimizer.step()
        updates.append({n: before[n] - w for n, w in weights.items()})
    return updates
