"""Faults of the loss: other targets, labels left out, another function."""

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any

import torch
from scipy.optimize import minimize_scalar
from torch import Tensor
from torch.nn.functional import pad

from pipekit.parity.factors import LEAST, NOTHING, Factors, same, shown
from pipekit.parity.fit import Known, Named, named
from pipekit.parity.observed import Observed
from pipekit.parity.of_passes import of_batch, passing, several
from pipekit.parity.of_updates import beside_right
from pipekit.parity.plain_loop import Tensors
from pipekit.parity.suite import CLASSES, IGNORED, loss, loss_of
from pipekit.parity.verdict import TOLERANCE, Fault

MOST_MOVED = 24  # microbatches, up to which targets may be those of another one


def of_the_loss(e: Observed) -> Iterator[Known]:
    """Yield other targets, and other weights of the loss's parts."""
    case = e.loop.case

    def labels(
        said: str, of: Callable[..., Tensor], fault: str = Fault.TARGETS, first: int = 0
    ) -> Iterator[Known]:
        """Yield labels made of the right ones, and of those of the batch before."""
        return passing(e, fault, said, first=first, given=lambda x, y, _, old: (x, of(y, old)))

    for parts in (n for n in e.candidates if n <= MOST_MOVED):
        by = e.loop.rows // parts
        for shift, side in ((by, "before"), (-by, "behind")):
            said = f"the inputs of {parts} microbatches with the targets of the one {side}"
            yield from labels(said, lambda y, _, by=shift: y.roll(by, 0))
        said = f"the targets come one of {parts} microbatches late, from batch to batch"
        yield from labels(said, lambda y, old, by=by: torch.cat([old[-by:], y[:-by]]), first=1)
    yield from labels("in the reverse order", lambda y, _: y.flip(0))
    yield from labels("those of the batch before", lambda _, old: old, first=1)
    for k in (1, -1):
        said = f"the classes behind by {k}"
        yield from labels(said, lambda y, _, k=k: y.where(y == IGNORED, (y + k) % CLASSES))
    if not case.coupled:
        said = "beside the inputs of the batch before"
        yield from passing(e, Fault.TARGETS, said, first=1, given=lambda _, y, old, __: (old, y))
    if case.tokens:
        for by, side in ((-1, "further"), (1, "before")):
            said = f"labels of one token {side}"
            yield from labels(said, lambda y, _, by=by: pad(y, (by, -by), value=IGNORED))
            yield from labels(f"{said}, or of the other end", lambda y, _, by=by: y.roll(by, 1))
        themselves = partial(lambda to, x, y, *_: (x, x.masked_fill(y == to, to)), IGNORED)
        yield from passing(e, Fault.TARGETS, "the inputs themselves", given=themselves)
    for label, fills in product(range(CLASSES), (False, True)):
        of, to = (IGNORED, label) if fills else (label, IGNORED)
        filled = partial(lambda of, to, y, _: y.masked_fill(y == of, to), of, to)
        said = f"labels of {of} count as {to}, where {IGNORED} are ignored"
        yield from labels(said, filled, Fault.TERMS if fills else Fault.LOST)
    for end, divided in product(("first", "last"), (True, False)) if case.ignored else ():
        without = partial(_without_an_end, end == "last", divided)
        yield from passing(e, Fault.LOST, f"of the {end} label of each row", loss=without)
    yield from _other_losses(e)
    if case.coupled and case.tuples:
        yield from _auxiliary(e)


def _without_an_end(last: bool, divided: bool, output: Any, target: Tensor) -> Tensor:
    """Return the mean over all labels but each row's first or last, or divide by all labels."""
    order = (1,) if last else ()
    others = (target != IGNORED).flip(order).cumsum(1).flip(order) > 1
    if divided:
        return loss(output, target.where(others, IGNORED))
    return loss_of(others, output, target)


def _other_losses(e: Observed) -> Iterator[Known]:
    def name(said: str, factors: Factors) -> Named:
        own, more = factors
        if abs(own) > NOTHING and abs(more) > LEAST:
            yield Fault.OTHER_LOSS, f"{own:.3g} of it with {more:.3g} of {said}"

    def log_sum_squared(output: Any, target: Tensor) -> Tensor:
        logits, *_ = several(output)
        mean: Tensor = logits[target != IGNORED].logsumexp(-1).square().mean()
        return mean

    def divided(temperature: float, output: Any, target: Tensor) -> Tensor:
        logits, *others = several(output)
        return loss((logits / temperature, *others), target)

    def off(logarithm: float) -> float:
        found = of_batch(e, 0, loss=partial(divided, math.exp(logarithm)))
        return sum(float((n.values[0] - found[n.name]).square().sum()) for n in e.wrong)

    for more, said in (
        (partial(loss, smoothing=1.0), "labels that are smooth"),
        (log_sum_squared, "the logits' squared log-sum (z-loss)"),
    ):
        both = partial(beside_right, e, partial(of_batch, e, loss=more))
        yield from named(e, both, partial(name, said), together=True)
    by = math.exp(minimize_scalar(off, bounds=(-2, 2), options={"xatol": 1e-9}).x)
    said = f"of the logits divided by {by:.4g}"
    yield from passing(e, Fault.OTHER_LOSS, said, loss=partial(divided, by))


def _auxiliary(e: Observed) -> Iterator[Known]:
    def basis(step: int) -> list[Tensors]:
        without, alone = (
            [replace(part, loss=of) for part in e.parts]
            for of in (lambda output, target: loss(output[0], target), lambda o, _: o[1].mean())
        )
        of_each = (e.loop.batch(step, [part]).gradients for part in alone)
        return [e.loop.batch(step, without).gradients, *of_each]

    def name(factors: Factors) -> Named:
        rest, *counts = factors
        if abs(rest) > NOTHING and not all(same(count, rest) for count in counts):
            said = f"of {len(counts)} microbatches it counts {shown(counts)} times"
            yield Fault.AUXILIARY, said + ("" if same(rest, 1.0) else f", and the rest {rest:.4g}")

    return named(e, basis, name, together=True)


def of_other_rows(e: Observed) -> Iterator[Known]:
    """Yield that the same labels belong to other rows, by what that leaves of the last layer.

    Its bias has the right gradient, a sum over rows; its weight's is another one, and still adds
    up to nothing over the classes; and so are all others.
    """
    wrong = {entry.name: entry for entry in e.wrong}
    right = {entry.name for entry in e.entries} - wrong.keys() - e.loop.frozen
    last = f"{e.loop.depth - 1}."
    heads = [n for name, n in wrong.items() if name.startswith(last) and name.endswith("weight")]
    if len(right) != 1 or not min(right).startswith(last) or len(heads) != 1:
        return
    sums = (values.sum(0) for values in heads[0].values[: e.steps])
    zero = e.right(0)[heads[0].name].sum(0)
    if all(e.ulps(step, heads[0].name, s, zero) <= TOLERANCE for step, s in enumerate(sums)):
        yield Known(Fault.TARGETS, "the same labels, in other rows", frozenset(e.wrong))
