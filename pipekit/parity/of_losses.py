"""Faults of the loss: other targets, labels left out, another function."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from pipekit.parity.factors import NOTHING, Factors, same, shown, whole
from pipekit.parity.fit import Known, Named, named
from pipekit.parity.observed import Observed
from pipekit.parity.of_passes import others, paired, passing
from pipekit.parity.plain_loop import Tensors
from pipekit.parity.suite import CLASSES, IGNORED, LENGTH, loss, loss_of
from pipekit.parity.verdict import TOLERANCE, Fault

MOST_MOVED = 24  # microbatches, up to which targets may be those of another one


def of_the_loss(e: Observed) -> Iterator[Known]:
    """Yield other targets, and other weights of the loss's parts."""
    case, targets = e.loop.case, partial(passing, e, Fault.TARGETS)
    late = partial(targets, first=1)
    for parts in (n for n in e.candidates if n <= MOST_MOVED):
        by = e.loop.rows // parts
        for whose in others(e.loop.rows, by) if not case.coupled else ():
            said = f"the targets of {parts} microbatches with the inputs of others"
            yield from targets(said, given=lambda x, y, *_, whose=whose: (x[whose], y))
        said = f"the targets come one of {parts} microbatches late, from batch to batch"
        yield from late(said, given=lambda x, y, _, old, k=by: (x, torch.cat([old[-k:], y[:-k]])))
    if case.tokens:
        said = "outputs of position "
        yield from paired(e, Fault.TARGETS, said, "with labels of", LENGTH, _beside)
    yield from late("those of the batch before", given=lambda x, _, __, old: (x, old))
    if not case.coupled:
        yield from late("beside the inputs of the batch before", given=lambda _, y, x, __: (x, y))
    for by, side in ((-1, "further"), (1, "before")) if case.tokens else ():
        moved = partial(lambda by, x, y, *_: (x, pad(y, (by, -by), value=IGNORED)), by)
        yield from targets(f"labels of one token {side}", given=moved)
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
    if case.coupled and case.tuples:
        yield from _auxiliary(e)


def _beside(own: int, other: int) -> dict[str, Any]:
    """Return the loss of the outputs of one position with the labels of another."""

    def beside(output: Any, target: Tensor) -> Tensor:
        return loss_of((slice(None), own), output, target.roll(own - other, 1))

    return {"loss": beside}


def _without_an_end(last: bool, divided: bool, output: Any, target: Tensor) -> Tensor:
    """Return the mean over all labels but each row's first or last, or divide by all labels."""
    order = (1,) if last else ()
    others = (target != IGNORED).flip(order).cumsum(1).flip(order) > 1
    if divided:
        return loss(output, target.where(others, IGNORED))
    return loss_of(others, output, target)


def _auxiliary(e: Observed) -> Iterator[Known]:
    losses = (lambda output, target: loss(output[0], target), lambda output, _: output[1].mean())
    rest, alone = ([replace(part, loss=of) for part in e.parts] for of in losses)

    def basis(step: int) -> list[Tensors]:
        return [e.loop.batch(step, parts).gradients for parts in (rest, *([p] for p in alone))]

    def name(factors: Factors) -> Named:
        rest, *counts = factors
        if abs(rest) > NOTHING and not all(same(count, rest) for count in counts):
            said = f"of {len(counts)} microbatches it counts {shown(counts)} times"
            yield Fault.AUXILIARY, said + ("" if same(rest, 1.0) else f", and the rest {rest:.4g}")

    return named(e, basis, name, together=True)


def of_other_targets(e: Observed) -> Iterator[Known]:
    """Yield that other labels are trained, by what that leaves of the last layer.

    In the gradient of logits a label takes 1 from a probability, and all add up to nothing over the
    classes: so do those of the last weight.  The last bias's, a sum over rows, is off by numbers of
    labels.  Tensors of other rows between layers leave the same: ask for these before.
    """
    last = sorted((n for n in e.entries if n.layer[1] == e.loop.depth - 1), key=lambda n: n.name)
    right = [n for n in e.entries if n not in e.wrong and n.name not in e.loop.frozen]
    if len(last) != 2 or not {*right} <= {last[0]}:
        return
    bias, weight = last
    moved = []
    for step in range(e.steps):
        total = weight.values[step].sum(0)
        if e.ulps(step, weight.name, total, torch.zeros_like(total)) > TOLERANCE:
            return
        off = bias.values[step] - e.right(step)[bias.name]
        moved.append(whole((off * e.loop.terms(step)).tolist()))
    if all(moved) and (right or any(map(any, moved))):
        said = "the same labels, in other rows" if right else "other labels of the same rows"
        yield Known(Fault.TARGETS, said, frozenset(e.wrong))
