"""Faults of the loss: other targets, labels left out, another function."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import product

import torch
from torch import Tensor
from torch.nn.functional import pad

from pipekit.parity.factors import NOTHING, Factors, same, shown
from pipekit.parity.fit import Known, Named, multiples, named
from pipekit.parity.observed import Observed
from pipekit.parity.of_passes import of_batch, others, passing
from pipekit.parity.plain_loop import Pass, Tensors
from pipekit.parity.suite import CLASSES, IGNORED, Batch, loss
from pipekit.parity.verdict import TOLERANCE, Fault

OF_OUTPUT = 1.2  # numbers of weights for each number of the outputs, at least
MOST_LABELS = 400  # of a row, or of all that stand with a token
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
    for end in ("first", "last") if case.ignored else ():
        without, said = partial(_without_an_end, end == "last"), f"of the {end} label of each row"
        masked = partial(of_batch, e, given=without)
        yield from multiples(e, Fault.LOST, said, masked, together=True, each_step=True)
    if case.coupled and case.tuples:
        yield from _auxiliary(e)


def _without_an_end(last: bool, x: Tensor, target: Tensor, *_: Tensor) -> Batch:
    """Return targets without each row's first or last label."""
    order = (1,) if last else ()
    others = (target != IGNORED).flip(order).cumsum(1).flip(order) > 1
    return x, target.where(others, IGNORED)


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


def of_outputs(e: Observed) -> Iterator[Known]:
    """Yield other labels or another loss, if outputs have other gradients and layers send them on.

    Whatever is derived, weights have a gradient by what the outputs have: of these numbers there
    are fewer than of weights, which therefore tell them, and whether there are any.  In those of
    cross entropy each label takes 1 from the probabilities of its row.
    """
    step, inputs = e.steps - 1, CLASSES if e.loop.case.tokens else e.loop.rows
    entries = [n for n in e.entries if n.name not in e.loop.frozen]
    numbers = sum(n.values[0].numel() for n in entries)
    if e.loop.case.coupled or numbers < OF_OUTPUT * inputs * CLASSES:
        return
    passes = [_of_output(e, *each) for each in product(range(inputs), range(CLASSES))]
    alone = [e.loop.run_anew(step, each) for each in passes]

    def joined(of: Tensors) -> Tensor:
        return torch.cat([of[n.name].flatten() / e.ulp(step, n.name) for n in entries])

    columns = torch.stack([joined(each.gradients) for each in alone])
    wanted = joined({n.name: n.values[step] for n in entries})
    solved, _ = torch.linalg.solve_ex(columns @ columns.T, columns @ wanted)
    if (solved @ columns - wanted).abs().max() <= TOLERANCE:
        outputs = torch.tensor([each.loss for each in alone], dtype=torch.double)
        chances = outputs.view(inputs, -1).softmax(-1)
        labels = torch.arange(MOST_LABELS)[:, None, None] * chances
        labels -= e.loop.terms(step) * solved.view(inputs, -1)
        whole = (labels - labels.round()).abs().amax(2).amin(0) < NOTHING
        fault = Fault.TARGETS if whole.all() else Fault.OTHER_LOSS
        yield Known(fault, "in the gradients of outputs, sent on rightly", frozenset(e.wrong))


def _of_output(e: Observed, own: int, label: int) -> Pass:
    """Return the pass whose loss is one output of a row, or of a token wherever it stands."""
    if not e.loop.case.tokens:
        return Pass(rows=(own, own + 1), loss=lambda output, _: output[0, label])
    return Pass(given=lambda x, *_: (x, x), loss=lambda y, x: y[x == own][:, label].mean())
