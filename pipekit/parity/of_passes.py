"""Faults of a pass: older weights, other layers or targets, tensors lost or exchanged between."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import chain, combinations, pairwise, product
from typing import Any

import torch

from pipekit.parity.hypothesis import NOTHING, Factors, Hypothesis, Named, each, same, times
from pipekit.parity.observed import Observed
from pipekit.parity.of_updates import added, meanings
from pipekit.parity.plain_loop import Pass, Tensors, total
from pipekit.parity.suite import CLASSES
from pipekit.parity.verdict import Fault

MOST_READ = 16  # microbatches, up to which each may read weights of its own
MOST_MOVED = 24  # microbatches, up to which targets may be those of another one
MOST_HANDED = 8  # microbatches that may be exchanged between layers
BLOCKS = (2, 3, 4)  # stages that are tried where their number is not known


def _passing(
    e: Observed,
    fault: str,
    said: str,
    like: Callable[[int], Pass],
    behind: int = 0,
    first: int = 0,
) -> Hypothesis:
    """Return the hypothesis that each step runs such a pass, in place of the right one."""
    named = times(fault, said, behind)
    return Hypothesis(lambda step: [_of(e, like(step))], named, together=True, first=first)


def _of(e: Observed, like: Pass) -> Tensors:
    return e.loop.weighted(like, e.parts(like.step) if e.loop.case.coupled else [like.rows])


def _with(e: Observed, **fault: Any) -> Callable[[int], Pass]:
    return lambda step: replace(e.loop.whole(step), **fault)


def in_time(e: Observed) -> Iterator[Hypothesis]:
    """Yield gradients of other weight versions and of other batches."""
    layers = range(e.loop.depth)
    for k in range(1, e.steps):
        said = f"every stage reads the weights of {_updates(k)} before"
        said += " or of more" if k == e.steps - 1 else ""
        yield _delayed(e, Fault.STALE.format(_updates(k)), said, [k for _ in layers])
    if e.stage_of is not None and e.stages is not None and e.stages > 1:
        delays = [e.stages - 1 - stage for stage in e.stage_of]
        yield from _staggered(e, delays)
        yield from _as_they_come(e, delays)
        for stage, k in product(range(e.stages), (1, 2)):
            said = f"stage {stage} alone reads the weights of {_updates(k)} before"
            own = [k * (e.stage_of[layer] == stage) for layer in layers]
            yield _delayed(e, Fault.STALE.format(_updates(k)), said, own)
    said = "each update is of the batch before, on the newest weights"
    newest = lambda s: replace(e.loop.whole(max(s - 1, 0)), forward=(s,) * len(layers))  # noqa: E731
    yield _passing(e, Fault.EARLIER_BATCH, said, newest)
    for use in {use for entry in e.wrong for use in e.loop.uses[entry.name][1:]}:
        said = f"the copy of a shared weight that {use} names"
        ever = [e.steps * (layer == e.loop.layer(use)) for layer in layers]
        yield _delayed(e, Fault.NEVER, said, ever)


def _updates(k: int) -> str:
    return f"{k} update{'s' * (k > 1)}"


def _delayed(
    e: Observed, fault: str, said: str, delays: Sequence[int], stashing: bool = True
) -> Hypothesis:
    """Return that each layer reads weights of so many updates before, if only in its forward."""

    def like(step: int) -> Pass:
        forward = tuple(max(step - delay, 0) for delay in delays)
        backward = None if stashing else (step,) * e.loop.depth
        return replace(e.loop.whole(step), forward=forward, backward=backward)

    return _passing(e, fault, said, like, max(delays))


def _staggered(e: Observed, delays: Sequence[int]) -> Iterator[Hypothesis]:
    """Yield PipeDream's versions (PipeDream, 3.4), with and without stashing."""
    fault = Fault.STALE.format(f"up to {_updates(max(delays))}")
    for stashing, read in ((True, "the same"), (False, "the newest")):
        said = "each stage reads one update older than the next in its forward, "
        yield _delayed(e, fault, f"{said}{read} in its backward", delays, stashing)


def _as_they_come(e: Observed, delays: Sequence[int]) -> Iterator[Hypothesis]:
    """Yield forwards on whatever version is there, as PACI's (arXiv 2606.07881, 3)."""

    def predicted(count: int, step: int) -> list[Tensors]:
        newest, sums = (step,) * e.loop.depth, []
        for k, rows in enumerate(e.loop.cut(step, count)):
            forward = tuple(max(step * count + k - delay, 0) // count for delay in delays)
            like = replace(e.loop.whole(step), forward=forward, backward=newest)
            sums.append((1.0, e.loop.weighted(like, [rows])))
        return [total(sums)]

    for count in (count for count in e.candidates if count <= MOST_READ):
        most = -(-max(delays) // count)
        said = f"the forwards of {count} microbatches read what is there, backwards the newest"
        fault = Fault.STALE.format(f"up to {_updates(most)}")
        yield Hypothesis(partial(predicted, count), times(fault, said, most))


def of_the_loss(e: Observed) -> Iterator[Hypothesis]:
    """Yield other targets, other weights of the loss's parts, and layers in evaluation mode."""
    case, rows = e.loop.case, e.loop.rows(0)
    for count in (count for count in e.candidates if count <= MOST_MOVED):
        for by, side in ((1, "before"), (-1, "behind")):
            said = f"the inputs of {count} microbatches with the targets of the one {side}"
            like = _with(e, shifted=(by * (rows // count), 0))
            yield _passing(e, Fault.TARGETS, said, like)
        said = f"the targets come one of {count} microbatches late, from batch to batch"
        like = _with(e, shifted=(rows // count, 0), carried=True)
        yield _passing(e, Fault.TARGETS, said, like, first=1)
    if case.tokens:
        like = _with(e, shifted=(0, 1))
        yield _passing(e, Fault.TARGETS, "labels of one token further", like)
    for label in range(CLASSES if case.ignored else 0):
        said = f"ignored labels count as class {label}"
        yield _passing(e, Fault.TERMS, said, _with(e, ignored=label))
    if e.loop.buffers[0]:
        said = "layers in evaluation mode"
        yield _passing(e, Fault.BATCH_NORM, said, _with(e, training=False))
    silent = lambda step: total(  # noqa: E731
        [(1.0, e.raw(step)), (-1.0, _of(e, _with(e, auxiliary=0.0)(step)))]
    )
    yield added(e, silent, "of the auxiliary loss", lambda _: [Fault.AUXILIARY])

    def smoothed(factors: Factors) -> Named:
        if same(sum(factors), 1.0) and abs(factors[1]) > NOTHING:
            yield Fault.OTHER_LOSS, f"labels smoothed by {factors[1]:.3g}"

    basis = lambda step: [e.raw(step), _of(e, _with(e, smoothing=1.0)(step))]  # noqa: E731
    yield Hypothesis(basis, each(smoothed), together=True)


def left_out(e: Observed) -> Iterator[Hypothesis]:
    """Yield the model without the layers that nobody has, or that get no gradients."""
    trained = {n for n in e.loop.uses if n not in e.loop.frozen}
    silent = {n.name for n in e.wrong if not any(v.any() for v in n.values[: e.steps])}
    silent |= set(e.missing)
    absent = {e.loop.layer(n) for n in silent} - {e.loop.layer(n) for n in trained - silent}
    if absent:
        which = ", ".join(map(str, sorted(absent)))
        order = [layer for layer in range(e.loop.depth) if layer not in absent]
        yield from _in_order(e, [order], Fault.MISSING, f"as if layers {which} were not there")


def orders(e: Observed) -> Iterator[Hypothesis]:
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


def _in_order(e: Observed, blocks: list[list[int]], fault: str, said: str) -> Iterator[Hypothesis]:
    like = _with(e, order=tuple(chain(*blocks)))
    with suppress(Exception):  # layers that do not fit fail in any way
        e.loop.run(like(0))
        yield _passing(e, fault, said, like)


def between(e: Observed) -> Iterator[Hypothesis]:
    """Yield tensors that reach the wrong microbatch of a layer, or are lost on the way."""
    firsts = [n + 1 for n, (a, b) in enumerate(pairwise(e.stage_of or ())) if a != b]
    firsts = firsts or list(range(1, e.loop.depth))
    if e.loop.case.tuples:
        for cut in product(firsts, (0, 1)):
            yield _sent_back(e, cut)
        return
    counts = [count for count in e.candidates if count <= MOST_HANDED]
    for layer, count, by, what in product(firsts, counts, (1, -1), ("input", "gradient")):
        shift = by * (e.loop.rows(0) // count)
        handed = (layer, shift, 0) if what == "input" else (layer, 0, shift)
        said = f"layer {layer}'s {what} is that of a neighbour of {count} microbatches"
        yield _passing(e, Fault.HANDED, said, _with(e, handed=handed))


def _sent_back(e: Observed, cut: tuple[int, int]) -> Hypothesis:
    """Return that of two tensors one's gradient is sent back so many times, or not at all."""
    basis = lambda step: [e.raw(step), _of(e, _with(e, cut=cut)(step))]  # noqa: E731
    which = f"of tensor {cut[1] + 1} of the two that layer {cut[0]} gets"

    def name(factors: Factors) -> Named:
        if same(sum(factors), 1.0) and not same(factors[0], 1.0):
            lost = abs(factors[0]) < NOTHING
            for fault in [Fault.CUT] if lost else meanings(e, factors[0]):
                yield fault, f"x {factors[0]:.4g}, {which}"

    return Hypothesis(basis, each(name), together=True)
