"""Faults of the loss: other targets, labels left out, another function."""

import math
from collections.abc import Iterator
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
from pipekit.parity.plain_loop import Tensors, total
from pipekit.parity.suite import CLASSES, IGNORED, loss, loss_of
from pipekit.parity.verdict import TOLERANCE, Fault

MOST_MOVED = 24  # microbatches, up to which targets may be those of another one


def of_the_loss(e: Observed) -> Iterator[Known]:
    """Yield other targets, and other weights of the loss's parts."""
    case, targets = e.loop.case, partial(passing, e, Fault.TARGETS)
    for parts in (n for n in e.candidates if n <= MOST_MOVED):
        by = e.loop.rows // parts
        for shift, side in ((by, "before"), (-by, "behind")):
            said = f"the inputs of {parts} microbatches with the targets of the one {side}"
            yield from targets(said, given=lambda x, y, *_, by=shift: (x, y.roll(by, 0)))
        said = f"the targets come one of {parts} microbatches late, from batch to batch"
        late = partial(lambda by, x, y, _, old: (x, torch.cat([old[-by:], y[:-by]])), by)
        yield from targets(said, first=1, given=late)
    yield from targets("in the reverse order", given=lambda x, y, *_: (x, y.flip(0)))
    yield from targets("those of the batch before", first=1, given=lambda x, _, __, old: (x, old))
    for k in (1, -1):
        counted = partial(lambda k, x, y, *_: (x, y.where(y == IGNORED, (y + k) % CLASSES)), k)
        yield from targets(f"the classes behind by {k}", given=counted)
    if case.tokens:
        for by, side in ((-1, "further"), (1, "before")):
            moved = partial(lambda by, x, y, *_: (x, pad(y, (by, -by), value=IGNORED)), by)
            yield from targets(f"labels of one token {side}", given=moved)
            moved = partial(lambda by, x, y, *_: (x, y.roll(by, 1)), by)
            yield from targets(f"labels of one token {side}, or of the other end", given=moved)
    if not case.coupled:
        said = "beside the inputs of the batch before"
        yield from targets(said, first=1, given=lambda _, y, old, __: (old, y))
    if case.tokens:
        ignored = partial(lambda to, x, y, *_: (x, x.masked_fill(y == to, to)), IGNORED)
        yield from targets("the inputs themselves", given=ignored)
    for label, fills in product(range(CLASSES), (False, True)):
        of, to = (IGNORED, label) if fills else (label, IGNORED)
        filled = partial(lambda of, to, x, y, *_: (x, y.masked_fill(y == of, to)), of, to)
        said = f"labels of {of} count as {to}, where {IGNORED} are ignored"
        yield from passing(e, Fault.TERMS if fills else Fault.LOST, said, given=filled)
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

    for more, said in (
        (partial(loss, smoothing=1.0), "labels that are smooth"),
        (_log_sum_squared, "the logits' squared log-sum (z-loss)"),
    ):
        both = partial(beside_right, e, partial(of_batch, e, loss=more))
        yield from named(e, both, partial(name, said), together=True)

    def off(logarithm: float) -> float:
        found = of_batch(e, 0, loss=partial(_divided, math.exp(logarithm)))
        return sum(float((n.values[0] - found[n.name]).square().sum()) for n in e.wrong)

    by = math.exp(minimize_scalar(off, bounds=(-2, 2), options={"xatol": 1e-9}).x)
    said = f"of the logits divided by {by:.4g}"
    yield from passing(e, Fault.OTHER_LOSS, said, loss=partial(_divided, by))


def _divided(temperature: float, output: Any, target: Tensor) -> Tensor:
    logits, *others = several(output)
    return loss((logits / temperature, *others), target)


def _log_sum_squared(output: Any, target: Tensor) -> Tensor:
    logits, *_ = several(output)
    mean: Tensor = logits[target != IGNORED].logsumexp(-1).square().mean()
    return mean


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


def _auxiliary(e: Observed) -> Iterator[Known]:
    def basis(step: int) -> list[Tensors]:
        whole = e.loop.whole(step)
        without = replace(whole, loss=lambda output, target: loss(output[0], target))
        found = [e.loop.batch(without, e.parts).gradients]
        for rows in e.parts:
            own = (e.loop.batch(like, [rows]).gradients for like in (whole, without))
            found.append(total(zip((1.0, -1.0), own, strict=True)))
        return found

    def name(factors: Factors) -> Named:
        rest, *counts = factors
        if abs(rest) > NOTHING and not all(same(count, rest) for count in counts):
            said = f"of {len(counts)} microbatches it counts {shown(counts)} times"
            yield Fault.AUXILIARY, said + ("" if same(rest, 1.0) else f", and the rest {rest:.4g}")

    return named(e, basis, name, together=True)
