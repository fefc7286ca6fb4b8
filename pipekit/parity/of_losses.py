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
from pipekit.parity.of_passes import SHARDS, of_batch, passing, several
from pipekit.parity.plain_loop import Tensors
from pipekit.parity.suite import CLASSES, IGNORED, loss, loss_of
from pipekit.parity.verdict import TOLERANCE, Fault

MOST_MOVED = 24  # microbatches, up to which targets may be those of another one


def of_the_loss(e: Observed) -> Iterator[Known]:
    """Yield other targets, and other weights of the loss's parts."""
    case, targets = e.loop.case, partial(passing, e, Fault.TARGETS)
    late = partial(targets, first=1)
    for parts in (n for n in e.candidates if n <= MOST_MOVED):
        by = e.loop.rows // parts
        for shift, side in ((by, "before"), (-by, "behind")):
            said = f"the inputs of {parts} microbatches with the targets of the one {side}"
            yield from targets(said, given=lambda x, y, *_, by=shift: (x, y.roll(by, 0)))
        said = f"the targets come one of {parts} microbatches late, from batch to batch"
        yield from late(said, given=lambda x, y, _, old, k=by: (x, torch.cat([old[-k:], y[:-k]])))
    yield from targets("in the reverse order", given=lambda x, y, *_: (x, y.flip(0)))
    yield from late("those of the batch before", given=lambda x, _, __, old: (x, old))
    if not case.coupled:
        yield from late("beside the inputs of the batch before", given=lambda _, y, x, __: (x, y))
    for k in (1, -1):
        behind = partial(lambda k, x, y, *_: (x, y.where(y == IGNORED, (y + k) % CLASSES)), k)
        yield from targets(f"the classes behind by {k}", given=behind)
    for by, side in ((-1, "further"), (1, "before")) if case.tokens else ():
        moved = partial(lambda by, x, y, *_: (x, pad(y, (by, -by), value=IGNORED)), by)
        said = f"labels of one token {side}"
        yield from targets(said, given=moved)
        said += ", or of the other end"
        yield from targets(said, given=lambda x, y, *_, by=by: (x, y.roll(by, 1)))
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
    def with_some(said: str, more: Callable[[Any, Tensor], Tensor]) -> Iterator[Known]:
        def name(factors: Factors) -> Named:
            own, other = factors
            if abs(own) > NOTHING and abs(other) > LEAST:
                yield Fault.OTHER_LOSS, f"{own:.3g} of it with {other:.3g} of {said}"

        return named(e, lambda s: [e.raw(s), of_batch(e, s, loss=more)], name, together=True)

    def of_logits(
        change: Callable[[Tensor, Tensor], Tensor], output: Any, target: Tensor
    ) -> Tensor:
        logits, *others = several(output)
        return loss((change(logits, target), *others), target)

    def log_sum_squared(output: Any, target: Tensor) -> Any:
        return several(output)[0][target != IGNORED].logsumexp(-1).square().mean()

    def divided(by: float) -> Callable[[Any, Tensor], Tensor]:
        return partial(of_logits, lambda logits, _: logits / by)

    def of_own_shard(size: int, logits: Tensor, target: Tensor) -> Tensor:
        shard = target.clamp(min=0)[..., None] // size  # of the label, whichever counts
        return logits.masked_fill(torch.arange(CLASSES) // size != shard, -math.inf)

    def off(logarithm: float) -> float:
        found = of_batch(e, 0, loss=divided(math.exp(logarithm)))
        return sum(float((n.values[0] - found[n.name]).square().sum()) for n in e.wrong)

    yield from with_some("labels that are smooth", partial(loss, smoothing=1.0))
    yield from with_some("the logits' squared log-sum (z-loss)", log_sum_squared)
    for count in SHARDS:
        said = f"of a softmax over the label's own shard of {count} of the classes"
        alone = partial(of_logits, partial(of_own_shard, -(-CLASSES // count)))
        yield from passing(e, Fault.OTHER_LOSS, said, loss=alone)
    by = math.exp(minimize_scalar(off, bounds=(-2, 2), options={"xatol": 1e-9}).x)
    yield from passing(e, Fault.OTHER_LOSS, f"of the logits divided by {by:.4g}", loss=divided(by))


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
