"""Faults of a pass: older weights, other layers or targets, tensors lost or exchanged between."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import chain, combinations, pairwise, product
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from pipekit.parity.factors import NOTHING, Factors, same, shown
from pipekit.parity.fit import Known, Named, multiples, named
from pipekit.parity.observed import Observed
from pipekit.parity.of_updates import meanings
from pipekit.parity.plain_loop import Tensors, total
from pipekit.parity.suite import CLASSES, IGNORED, loss, loss_of
from pipekit.parity.verdict import TOLERANCE, Fault

MOST_READ = 16  # microbatches, up to which each may read weights of its own
MOST_MOVED = 24  # microbatches, up to which targets may be those of another one
MOST_HANDED = 8  # microbatches that may be exchanged between layers
SHARDS = (2, 4)  # of a layer, over ranks that share it
BOTH = (0, 1)
BLOCKS = (2, 3, 4)  # stages that are tried where their number is not known


def _gradients(e: Observed, step: int, **changed: Any) -> Tensors:
    """Return what a batch's passes give if they are as right, but for what is changed."""
    return e.loop.batch(replace(e.loop.whole(step), **changed), e.parts, anew=True).gradients


def _passing(
    e: Observed, fault: str, said: str, *, behind: int = 0, first: int = 0, **changed: Any
) -> Iterator[Known]:
    """Yield what such passes explain; the changed are fields of :class:`.Pass`."""
    gradients = partial(_gradients, e, **changed)
    return multiples(e, fault, said, gradients, behind, together=True, first=first)


def in_time(e: Observed) -> Iterator[Known]:
    """Yield gradients of other weight versions and of other batches."""
    depth = e.loop.depth
    for k in range(1, e.steps):
        said = f"every stage reads the weights of {_updates(k)} before"
        said += " or of more" if k == e.steps - 1 else ""
        fault = Fault.STALE.format(_updates(k))
        yield from _passing(e, fault, said, behind=k, delays=(k,) * depth)
    if e.stage_of is not None and e.stages is not None and e.stages > 1:
        delays = tuple(e.stages - 1 - stage for stage in e.stage_of)
        most = max(delays)
        fault = Fault.STALE.format(f"up to {_updates(most)}")  # PipeDream, section 3.4
        for backward, read in ((None, "the same"), ((0,) * depth, "the newest")):
            said = "each stage reads one update older than the next in its forward, "
            said += f"{read} in its backward"
            yield from _passing(e, fault, said, behind=most, delays=delays, backward=backward)
        yield from _as_they_come(e, delays)
        for stage, k in product(range(e.stages), (1, 2)):
            said = f"stage {stage} alone reads the weights of {_updates(k)} before"
            own = tuple(k * (each == stage) for each in e.stage_of)
            fault = Fault.STALE.format(_updates(k))
            yield from _passing(e, fault, said, behind=max(own), delays=own)

    said = "each update is of the batch before, on the newest weights"
    yield from _passing(e, Fault.EARLIER_BATCH, said, given=lambda _, __, *before: before)
    for use in {use for entry in e.wrong for use in e.loop.uses[entry.name][1:]}:
        said = f"the copy of a shared weight that {use} names"
        ever = tuple(e.steps * (layer == e.loop.layer(use)) for layer in range(depth))
        yield from _passing(e, Fault.NEVER, said, behind=e.steps, delays=ever)


def _updates(k: int) -> str:
    return f"{k} update{'s' * (k > 1)}"


def _as_they_come(e: Observed, delays: Sequence[int]) -> Iterator[Known]:
    """Yield forwards on whatever version is there, as PACI's (arXiv 2606.07881, 3)."""

    def predicted(count: int, step: int) -> Tensors:
        like, sums = replace(e.loop.whole(step), backward=(0,) * e.loop.depth), []
        for k, rows in enumerate(e.loop.cut(count)):
            late = tuple(-((k - delay) // count) for delay in delays)
            sums.append((1.0, e.loop.batch(replace(like, delays=late), [rows]).gradients))
        return total(sums)

    for count in (count for count in e.candidates if count <= MOST_READ):
        most = -(-max(delays) // count)
        said = f"the forwards of {count} microbatches read what is there, backwards the newest"
        fault = Fault.STALE.format(f"up to {_updates(most)}")
        yield from multiples(e, fault, said, partial(predicted, count), most)


def of_the_loss(e: Observed) -> Iterator[Known]:
    """Yield other targets, other weights of the loss's parts, and layers in evaluation mode."""
    case, targets = e.loop.case, partial(_passing, e, Fault.TARGETS)
    for count in (count for count in e.candidates if count <= MOST_MOVED):
        by = e.loop.rows // count
        for shift, side in ((by, "before"), (-by, "behind")):
            said = f"the inputs of {count} microbatches with the targets of the one {side}"
            yield from targets(said, given=lambda x, y, *_, by=shift: (x, y.roll(by, 0)))
        said = f"the targets come one of {count} microbatches late, from batch to batch"
        late = partial(lambda by, x, y, _, old: (x, torch.cat([old[-by:], y[:-by]])), by)
        yield from targets(said, first=1, given=late)
    yield from targets("in the reverse order", given=lambda x, y, *_: (x, y.flip(0)))
    yield from targets("those of the batch before", first=1, given=lambda x, _, __, old: (x, old))
    if case.tokens:
        for by, side in ((-1, "further"), (1, "before")):
            moved = partial(lambda by, x, y, *_: (x, pad(y, (by, -by), value=IGNORED)), by)
            yield from targets(f"labels of one token {side}", given=moved)
    if not case.coupled:
        said = "beside the inputs of the batch before"
        yield from targets(said, first=1, given=lambda _, y, old, __: (old, y))
    if case.tokens:
        ignored = partial(lambda to, x, y, *_: (x, x.masked_fill(y == to, to)), IGNORED)
        yield from targets("the inputs themselves", given=ignored)
    for label in range(CLASSES if case.ignored else 0):
        said = f"ignored labels count as class {label}"
        filled = partial(lambda to, x, y, *_: (x, y.masked_fill(y == IGNORED, to)), label)
        yield from _passing(e, Fault.TERMS, said, given=filled)
    if e.loop.buffers[0]:
        yield from _passing(e, Fault.BATCH_NORM, "layers in evaluation mode", training=False)

    def smoothed(factors: Factors) -> Named:
        if same(sum(factors), 1.0) and abs(factors[1]) > NOTHING:
            yield Fault.OTHER_LOSS, f"labels smoothed by {factors[1]:.3g}"

    smooth = partial(_gradients, e, loss=partial(loss, smoothing=1.0))
    yield from named(e, lambda step: [e.raw(step), smooth(step)], smoothed, together=True)
    if case.coupled and case.tuples:
        yield from _auxiliary(e)


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


def left_out(e: Observed) -> Iterator[Known]:
    """Yield the model without the layers that nobody has, or that get no gradients."""
    trained = {n for n in e.loop.uses if n not in e.loop.frozen}
    silent = {n.name for n in e.wrong if not any(v.any() for v in n.values[: e.steps])}
    silent |= set(e.missing)
    absent = {e.loop.layer(n) for n in silent} - {e.loop.layer(n) for n in trained - silent}
    if absent:
        which = ", ".join(map(str, sorted(absent)))
        order = [layer for layer in range(e.loop.depth) if layer not in absent]
        yield from _in_order(e, [order], Fault.MISSING, f"as if layers {which} were not there")


def orders(e: Observed) -> Iterator[Known]:
    """Yield blocks of layers, perhaps stages, that are left out, run twice or change places."""
    layers, of = torch.arange(e.loop.depth), torch.tensor(e.stage_of or [0])
    stages = [layers[of == stage] for stage in of.unique()] if of.any() else []
    cuts = [stages] if stages else [layers.tensor_split(n) for n in (*BLOCKS, e.loop.depth)]
    for cut in cuts:
        blocks = [block.tolist() for block in cut]
        names = [f"layers {block[0]} to {block[-1]}" for block in blocks]
        for k, name in enumerate(names):
            before, after = blocks[:k], blocks[k + 1 :]
            yield from _in_order(e, [*before, *after], Fault.MISSING, f"without {name}")
            twice = [*before, blocks[k], blocks[k], *after]
            yield from _in_order(e, twice, Fault.ORDER, f"{name} twice")
        for a, b in combinations(range(len(blocks)), 2):
            order = list(blocks)
            order[a], order[b] = order[b], order[a]
            said = f"{names[a]} and {names[b]} in each other's place"
            yield from _in_order(e, order, Fault.ORDER, said)


def _in_order(e: Observed, blocks: list[list[int]], fault: str, said: str) -> Iterator[Known]:
    order = tuple(chain(*blocks))
    with suppress(Exception):  # layers that do not fit fail in any way
        e.loop.run(replace(e.loop.whole(0), order=order))
        return _passing(e, fault, said, order=order)
    return iter(())


def of_shards(e: Observed) -> Iterator[Known]:
    """Yield a shard of a layer's outputs, or of all such layers', that alone sends gradients."""
    matrices = [(n, len(w)) for n, w in e.loop.weights[0].items() if w.dim() == 2]
    alike = [[each for each in matrices if each[1] == rows] for rows in {n for _, n in matrices}]
    alone = [[one] for one in matrices] if not e.loop.case.coupled else []  # passes are many there
    for own, count in product([*alike, *alone], SHARDS):
        of = f"layer {e.loop.layer(own[0][0])}" if len(own) == 1 else "each layer"
        for k in range(count):
            ends = [(n, rows * k // count, rows * (k + 1) // count) for n, rows in own]
            silent = [[(n, slice(first)), (n, slice(behind, None))] for n, first, behind in ends]
            said = f"of {of} only shard {k + 1} of {count} sends one back"
            yield from _passing(e, Fault.CUT, said, silent=tuple(chain(*silent)))


def between(e: Observed) -> Iterator[Known]:
    """Yield tensors that reach the wrong microbatch of a layer, or are lost on the way."""
    tuples = e.loop.case.tuples
    firsts = [n + 1 for n, (a, b) in enumerate(pairwise(e.stage_of or ())) if a != b]
    firsts = firsts or list(range(1, e.loop.depth))
    for first in firsts if tuples else ():
        for number in BOTH:
            yield from _sent_back(e, first, number)
        for said, to in (("exchanged", (1, 0)), ("added up for the first", (0, 0))):
            said = f"those of the two tensors that layer {first} gets are {said}"
            yield from _passing(e, Fault.CUT, said, input=(first, partial(_rerouted, to)))
    if e.loop.case.coupled:
        return  # whose rows go through in turn, each microbatch alone
    counts = [count for count in e.candidates if count <= MOST_HANDED]
    # A layer that sends gradients back to others leaves all layers from itself on right.
    highest = max(e.loop.layer(e.loop.uses[entry.name][0]) for entry in e.wrong)
    for layer, count in product(firsts, counts):
        size = e.loop.rows // count
        numbers = (BOTH, (0,), (1,)) if tuples else (BOTH,)
        for by, back, chosen in product((size, -size), (0, 1), numbers):
            of = "input" if chosen == BOTH else f"tensor {chosen[0] + 1} of two"
            said = f"layer {layer}'s {of} is that of a neighbour of {count} microbatches"
            moved = layer, partial(_handed, by, back * by, chosen=chosen)
            yield from _passing(e, Fault.HANDED, said, input=moved)
        if layer > highest:
            sent_back = partial(_pairs, e, layer, count)
            yield from named(e, sent_back, partial(_of_others, layer, count), together=True)
    trained = min(e.loop.layer(name) for name in e.loop.uses if name not in e.loop.frozen)
    for layer in firsts if not tuples else ():
        if layer > trained:  # which sends gradients back
            yield from _of_the_batch_before(e, layer)


def _handed(shift: int, back: int, value: Any, chosen: tuple[int, ...] = BOTH) -> Any:
    """Return values of other rows, which send their gradients back to others again."""
    if isinstance(value, Tensor):
        late = value.roll(back, 0)
        return late + (value.roll(shift, 0) - late).detach()
    return tuple(_handed(shift, back, v) if n in chosen else v for n, v in enumerate(value))


def _pairs(e: Observed, layer: int, count: int, step: int) -> list[Tensors]:
    """Return what each microbatch's loss gives if a layer sends its gradients back to each."""
    found, size = [], e.loop.rows // count
    for own, other in product(range(count), repeat=2):
        part = partial(loss_of, slice(own * size, (own + 1) * size))
        back = layer, partial(_handed, 0, (own - other) * size)
        gradients = _gradients(e, step, loss=part, input=back)
        found.append({n: g for n, g in gradients.items() if e.loop.layer(n) < layer})
    return found


def _of_others(layer: int, count: int, factors: Factors) -> Named:
    pairs = product(range(count), repeat=2)
    there = [(*pair, f) for pair, f in zip(pairs, factors, strict=True) if abs(f) > NOTHING]
    if any(own != other for own, other, _ in there):
        said = f"of {count} microbatches layer {layer} sends back the gradient of "
        yield Fault.HANDED, said + ", ".join(f"{k} to {n} x {f:.3g}" for k, n, f in there)


def _of_the_batch_before(e: Observed, first: int) -> Iterator[Known]:
    """Yield inputs of a layer, or gradients of these, that are of the batch before."""

    def before(step: int) -> tuple[Tensor, Tensor]:
        held: list[Tensor] = []

        def hold(value: Tensor) -> Tensor:
            held.append(value)
            value.register_hook(held.append)
            return value

        e.loop.run_anew(replace(e.loop.whole(max(step - 1, 0)), input=(first, hold)))
        return held[0].detach(), held[1]

    def of_input(step: int) -> Tensors:
        late, _ = before(step)
        return _gradients(e, step, input=(first, lambda value: late + (value - value.detach())))

    def of_gradient(step: int) -> Tensors:
        _, late = before(step)
        order = tuple(range(first))
        found = _gradients(e, step, order=order, loss=lambda output, _: (output * late).sum())
        return {n: g for n, g in found.items() if e.loop.layer(n) < first}

    for what, predicted in (("input", of_input), ("gradient", of_gradient)):
        said = f"layer {first}'s {what} is that of the batch before"
        yield from multiples(e, Fault.HANDED, said, predicted, together=True, first=1)


def _rerouted(to: tuple[int, int], value: Any) -> Any:
    if isinstance(value, Tensor) or value[0].shape != value[1].shape:
        return value
    return tuple(v.detach() + value[k] - value[k].detach() for v, k in zip(value, to, strict=True))


def _sent_back(e: Observed, first: int, number: int) -> Iterator[Known]:
    """Yield that of two tensors one's gradient is sent back so many times, or not at all."""

    def cut(value: Any) -> Any:
        if isinstance(value, Tensor):
            return value
        return tuple(v.detach() if k == number else v for k, v in enumerate(value))

    def basis(step: int) -> list[Tensors]:
        return [e.raw(step), _gradients(e, step, input=(first, cut))]

    def name(factors: Factors) -> Named:
        said = f"x {factors[0]:.4g}, of tensor {number + 1} of the two that layer {first} gets"
        if same(sum(factors), 1.0) and not same(factors[0], 1.0):
            lost = abs(factors[0]) < NOTHING
            yield from ((f, said) for f in ([Fault.CUT] if lost else meanings(e, factors[0])))

    return named(e, basis, name, together=True)
