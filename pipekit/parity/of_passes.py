"""Faults of a pass: older weights, other layers or targets, tensors lost or exchanged between."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import chain, combinations, pairwise, product
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from pipekit.parity.fit import NOTHING, Factors, Known, Named, multiples, named, same, shown
from pipekit.parity.observed import Observed
from pipekit.parity.of_updates import meanings
from pipekit.parity.plain_loop import Pass, Tensors, total
from pipekit.parity.suite import CLASSES, IGNORED, loss, loss_of
from pipekit.parity.verdict import Fault

MOST_READ = 16  # microbatches, up to which each may read weights of its own
MOST_MOVED = 24  # microbatches, up to which targets may be those of another one
MOST_HANDED = 8  # microbatches that may be exchanged between layers
SHARDS = (2, 4)  # of a layer, over ranks that share it
BOTH = (0, 1)
BLOCKS = (2, 3, 4)  # stages that are tried where their number is not known


def _passing(
    e: Observed, fault: str, said: str, like: Callable[[int], Pass], behind: int = 0, first: int = 0
) -> Iterator[Known]:
    gradients = partial(_gradients, e, like)
    return multiples(e, fault, said, gradients, behind, together=True, first=first)


def _gradients(e: Observed, like: Callable[[int], Pass], step: int) -> Tensors:
    return e.loop.batch(like(step), e.parts, anew=True).gradients


def _with(e: Observed, **fault: Any) -> Callable[[int], Pass]:
    return lambda step: replace(e.loop.whole(step), **fault)


def in_time(e: Observed) -> Iterator[Known]:
    """Yield gradients of other weight versions and of other batches."""
    layers = range(e.loop.depth)
    for k in range(1, e.steps):
        said = f"every stage reads the weights of {_updates(k)} before"
        said += " or of more" if k == e.steps - 1 else ""
        yield from _delayed(e, Fault.STALE.format(_updates(k)), said, [k for _ in layers])
    if e.stage_of is not None and e.stages is not None and e.stages > 1:
        delays = [e.stages - 1 - stage for stage in e.stage_of]
        fault = Fault.STALE.format(f"up to {_updates(max(delays))}")  # PipeDream, section 3.4
        for stashing, read in ((True, "the same"), (False, "the newest")):
            said = "each stage reads one update older than the next in its forward, "
            yield from _delayed(e, fault, f"{said}{read} in its backward", delays, stashing)
        yield from _as_they_come(e, delays)
        for stage, k in product(range(e.stages), (1, 2)):
            said = f"stage {stage} alone reads the weights of {_updates(k)} before"
            own = [k * (e.stage_of[layer] == stage) for layer in layers]
            yield from _delayed(e, Fault.STALE.format(_updates(k)), said, own)

    def newest(step: int) -> Pass:
        return replace(e.loop.whole(max(step - 1, 0)), forward=(step,) * len(layers))

    said = "each update is of the batch before, on the newest weights"
    yield from _passing(e, Fault.EARLIER_BATCH, said, newest)
    for use in {use for entry in e.wrong for use in e.loop.uses[entry.name][1:]}:
        said = f"the copy of a shared weight that {use} names"
        ever = [e.steps * (layer == e.loop.layer(use)) for layer in layers]
        yield from _delayed(e, Fault.NEVER, said, ever)


def _updates(k: int) -> str:
    return f"{k} update{'s' * (k > 1)}"


def _delayed(
    e: Observed, fault: str, said: str, delays: Sequence[int], stashing: bool = True
) -> Iterator[Known]:
    def like(step: int) -> Pass:
        forward = tuple(max(step - delay, 0) for delay in delays)
        backward = None if stashing else (step,) * e.loop.depth
        return replace(e.loop.whole(step), forward=forward, backward=backward)

    return _passing(e, fault, said, like, max(delays))


def _as_they_come(e: Observed, delays: Sequence[int]) -> Iterator[Known]:
    """Yield forwards on whatever version is there, as PACI's (arXiv 2606.07881, 3)."""

    def predicted(count: int, step: int) -> Tensors:
        newest, sums = (step,) * e.loop.depth, []
        for k, rows in enumerate(e.loop.cut(count)):
            forward = tuple(max(step * count + k - delay, 0) // count for delay in delays)
            like = replace(e.loop.whole(step), forward=forward, backward=newest)
            sums.append((1.0, e.loop.batch(like, [rows]).gradients))
        return total(sums)

    for count in (count for count in e.candidates if count <= MOST_READ):
        most = -(-max(delays) // count)
        said = f"the forwards of {count} microbatches read what is there, backwards the newest"
        fault = Fault.STALE.format(f"up to {_updates(most)}")
        yield from multiples(e, fault, said, partial(predicted, count), most)


def of_the_loss(e: Observed) -> Iterator[Known]:
    """Yield other targets, other weights of the loss's parts, and layers in evaluation mode."""
    case, rows = e.loop.case, e.loop.rows
    for count in (count for count in e.candidates if count <= MOST_MOVED):
        by = rows // count
        for shift, side in ((by, "before"), (-by, "behind")):
            said = f"the inputs of {count} microbatches with the targets of the one {side}"
            like = _with(e, target=lambda own, _, shift=shift: own.roll(shift, 0))
            yield from _passing(e, Fault.TARGETS, said, like)
        said = f"the targets come one of {count} microbatches late, from batch to batch"
        like = _with(e, target=lambda own, old, by=by: torch.cat([old[-by:], own[:-by]]))
        yield from _passing(e, Fault.TARGETS, said, like, first=1)
    like = _with(e, target=lambda own, _: own.flip(0))
    yield from _passing(e, Fault.TARGETS, "in the reverse order", like)
    if case.tokens:
        like = _with(e, target=lambda own, _: pad(own[:, 1:], (0, 1), value=IGNORED))
        yield from _passing(e, Fault.TARGETS, "labels of one token further", like)
    for label in range(CLASSES if case.ignored else 0):
        like = _with(e, target=lambda own, _, to=label: own.masked_fill(own == IGNORED, to))
        yield from _passing(e, Fault.TERMS, f"ignored labels count as class {label}", like)
    if e.loop.buffers[0]:
        said = "layers in evaluation mode"
        yield from _passing(e, Fault.BATCH_NORM, said, _with(e, training=False))
    smooth = partial(_gradients, e, _with(e, loss=partial(loss, smoothing=1.0)))

    def smoothed(factors: Factors) -> Named:
        if same(sum(factors), 1.0) and abs(factors[1]) > NOTHING:
            yield Fault.OTHER_LOSS, f"labels smoothed by {factors[1]:.3g}"

    yield from named(e, lambda step: [e.raw(step), smooth(step)], smoothed, together=True)
    if case.coupled and case.tuples:
        yield from _auxiliary(e)


def _auxiliary(e: Observed) -> Iterator[Known]:
    without = _with(e, loss=lambda output, target: loss(output[0], target))

    def basis(step: int) -> list[Tensors]:
        found = [_gradients(e, without, step)]
        for rows in e.parts:
            own = (e.loop.batch(like(step), [rows]).gradients for like in (e.loop.whole, without))
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
    for blocks in _blocks(e):
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


def _blocks(e: Observed) -> Iterator[list[list[int]]]:
    layers = torch.arange(e.loop.depth)
    if e.stage_of is None or len({*e.stage_of}) == 1:
        for count in (*BLOCKS, e.loop.depth):
            yield [part.tolist() for part in layers.tensor_split(count)]
    else:
        of = torch.tensor(e.stage_of)
        yield [layers[of == stage].tolist() for stage in range(max(e.stage_of) + 1)]


def _in_order(e: Observed, blocks: list[list[int]], fault: str, said: str) -> Iterator[Known]:
    like = _with(e, order=tuple(chain(*blocks)))
    with suppress(Exception):  # layers that do not fit fail in any way
        e.loop.run(like(0))
        return _passing(e, fault, said, like)
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
            yield from _passing(e, Fault.CUT, said, _with(e, silent=tuple(chain(*silent))))


def between(e: Observed) -> Iterator[Known]:
    """Yield tensors that reach the wrong microbatch of a layer, or are lost on the way."""
    firsts = [n + 1 for n, (a, b) in enumerate(pairwise(e.stage_of or ())) if a != b]
    firsts = firsts or list(range(1, e.loop.depth))
    if e.loop.case.tuples:
        for first in firsts:
            for number in (0, 1):
                yield from _sent_back(e, first, number)
            for said, to in (("exchanged", (1, 0)), ("added up for the first", (0, 0))):
                like = _with(e, input=partial(_rerouted, first, to))
                said = f"those of the two tensors that layer {first} gets are {said}"
                yield from _passing(e, Fault.CUT, said, like)

    if e.loop.case.coupled:
        return  # whose rows go through in turn, each microbatch alone
    counts = [count for count in e.candidates if count <= MOST_HANDED]
    for layer, count in product(firsts, counts):
        size = e.loop.rows // count
        numbers = (BOTH, (0,), (1,)) if e.loop.case.tuples else (BOTH,)
        for by, back, chosen in product((size, -size), (0, 1), numbers):
            of = "input" if chosen == BOTH else f"tensor {chosen[0] + 1} of two"
            said = f"layer {layer}'s {of} is that of a neighbour of {count} microbatches"
            like = _with(e, input=partial(_handed, layer, by, back * by, chosen=chosen))
            yield from _passing(e, Fault.HANDED, said, like)

        def sent_back(step: int, layer: int = layer, count: int = count) -> list[Tensors]:
            found, size = [], e.loop.rows // count
            for own, other in product(range(count), repeat=2):
                part = partial(loss_of, slice(own * size, (own + 1) * size))
                back = partial(_handed, layer, 0, (own - other) * size)
                gradients = _gradients(e, _with(e, loss=part, input=back), step)
                found.append({n: g for n, g in gradients.items() if e.loop.layer(n) < layer})
            return found

        yield from named(e, sent_back, partial(_of_others, layer, count), together=True)
    trained = min(e.loop.layer(name) for name in e.loop.uses if name not in e.loop.frozen)
    for layer in [] if e.loop.case.tuples else firsts:
        if layer > trained:  # which sends gradients back
            yield from _of_the_batch_before(e, layer)


def _handed(
    first: int, shift: int, back: int, layer: int, value: Any, chosen: tuple[int, ...] = BOTH
) -> Any:
    """Return values of other rows, which send their gradients back to others again."""
    if layer != first:
        return value
    if isinstance(value, Tensor):
        late = value.roll(back, 0)
        return late + (value.roll(shift, 0) - late).detach()
    moved = (_handed(first, shift, back, layer, tensor) for tensor in value)
    return tuple(m if n in chosen else v for n, (m, v) in enumerate(zip(moved, value, strict=True)))


def _of_the_batch_before(e: Observed, first: int) -> Iterator[Known]:
    """Yield inputs of a layer, or gradients of these, that are of the batch before."""

    def before(step: int) -> tuple[Tensor, Tensor]:
        held: list[Tensor] = []

        def hold(layer: int, value: Tensor) -> Tensor:
            if layer == first:
                held.append(value)
                value.register_hook(held.append)
            return value

        e.loop.run_anew(replace(e.loop.whole(max(step - 1, 0)), input=hold))
        return held[0].detach(), held[1]

    def of_input(step: int) -> Tensors:
        late, _ = before(step)

        def handed(layer: int, value: Tensor) -> Tensor:
            return late + (value - value.detach()) if layer == first else value

        return _gradients(e, _with(e, input=handed), step)

    def of_gradient(step: int) -> Tensors:
        _, late = before(step)
        like = _with(e, order=tuple(range(first)), loss=lambda output, _: (output * late).sum())
        return {n: g for n, g in _gradients(e, like, step).items() if e.loop.layer(n) < first}

    for what, predicted in (("input", of_input), ("gradient", of_gradient)):
        said = f"layer {first}'s {what} is that of the batch before"
        yield from multiples(e, Fault.HANDED, said, predicted, together=True, first=1)


def _of_others(layer: int, count: int, factors: Factors) -> Named:
    pairs = product(range(count), repeat=2)
    there = [(*pair, f) for pair, f in zip(pairs, factors, strict=True) if abs(f) > NOTHING]
    if any(own != other for own, other, _ in there):
        said = f"of {count} microbatches layer {layer} sends back the gradient of "
        yield Fault.HANDED, said + ", ".join(f"{k} to {n} x {f:.3g}" for k, n, f in there)


def _rerouted(first: int, to: tuple[int, int], layer: int, value: Any) -> Any:
    if layer != first or isinstance(value, Tensor) or value[0].shape != value[1].shape:
        return value
    return tuple(v.detach() + value[k] - value[k].detach() for v, k in zip(value, to, strict=True))


def _sent_back(e: Observed, first: int, number: int) -> Iterator[Known]:
    """Yield that of two tensors one's gradient is sent back so many times, or not at all."""

    def cut(layer: int, value: Any) -> Any:
        if layer != first or isinstance(value, Tensor):
            return value
        return tuple(v.detach() if k == number else v for k, v in enumerate(value))

    without = partial(_gradients, e, _with(e, input=cut))

    def name(factors: Factors) -> Named:
        said = f"x {factors[0]:.4g}, of tensor {number + 1} of the two that layer {first} gets"
        if same(sum(factors), 1.0) and not same(factors[0], 1.0):
            lost = abs(factors[0]) < NOTHING
            yield from ((f, said) for f in ([Fault.CUT] if lost else meanings(e, factors[0])))

    return named(e, lambda step: [e.raw(step), without(step)], name, together=True)
