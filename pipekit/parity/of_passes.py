"""Faults of a pass: older weights, other layers or targets, tensors lost or exchanged between."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import chain, combinations, pairwise, product
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear as product_of

from pipekit.parity.factors import NOTHING, Factors, same
from pipekit.parity.fit import Known, Named, multiples, named
from pipekit.parity.observed import Observed
from pipekit.parity.of_updates import meanings
from pipekit.parity.plain_loop import Tensors, total
from pipekit.parity.suite import loss_of
from pipekit.parity.verdict import Fault

MOST_READ = 16  # microbatches, up to which each may read weights of its own
MOST_HANDED = 8  # microbatches that may be exchanged between layers
SHARDS = (2, 4)  # of a layer, over ranks that share it
BOTH = (0, 1)
BLOCKS = (2, 3, 4)  # stages that are tried where their number is not known

Through = tuple[tuple[int, ...], Callable[[nn.Module, Any], Any]]  # as a pass has it


def of_batch(e: Observed, step: int, **changed: Any) -> Tensors:
    """Return what a batch's passes give if they are as right, but for what is changed."""
    return e.loop.batch(replace(e.loop.whole(step), **changed), e.parts, anew=True).gradients


def passing(
    e: Observed, fault: str, said: str, *, behind: int = 0, first: int = 0, **changed: Any
) -> Iterator[Known]:
    """Yield what such passes explain; the changed are fields of :class:`.Pass`."""
    changed_batch = partial(of_batch, e, **changed)
    return multiples(e, fault, said, changed_batch, behind, together=True, first=first)


def in_time(e: Observed) -> Iterator[Known]:
    """Yield gradients of other weight versions and of other batches."""
    depth = e.loop.depth
    for k in range(1, e.steps):
        said = f"every stage reads the weights of {_updates(k)} before"
        said += " or of more" if k == e.steps - 1 else ""
        fault = Fault.STALE.format(_updates(k))
        yield from passing(e, fault, said, behind=k, delays=(k,) * depth)
    if e.stage_of is not None and e.stages is not None and e.stages > 1:
        delays = tuple(e.stages - 1 - stage for stage in e.stage_of)
        most = max(delays)
        fault = Fault.STALE.format(f"up to {_updates(most)}")  # PipeDream, section 3.4
        for backward, read in ((None, "the same"), ((0,) * depth, "the newest")):
            said = "each stage reads one update older than the next in its forward, "
            said += f"{read} in its backward"
            yield from passing(e, fault, said, behind=most, delays=delays, backward=backward)
        yield from _as_they_come(e, delays)
        for stage, k in product(range(e.stages), (1, 2)):
            said = f"stage {stage} alone reads the weights of {_updates(k)} before"
            own = tuple(k * (each == stage) for each in e.stage_of)
            fault = Fault.STALE.format(_updates(k))
            yield from passing(e, fault, said, behind=max(own), delays=own)

    said = "each update is of the batch before, on the newest weights"
    yield from passing(e, Fault.EARLIER_BATCH, said, given=lambda _, __, *before: before)
    for use in {use for entry in e.wrong for use in e.loop.uses[entry.name][1:]}:
        said = f"the copy of a shared weight that {use} names"
        ever = tuple(e.steps * (layer == e.loop.layer(use)) for layer in range(depth))
        yield from passing(e, Fault.NEVER, said, behind=e.steps, delays=ever)


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


def _blocks(e: Observed) -> list[list[list[int]]]:
    """Return the layers of each stage, or of each block in several ways to cut the model."""
    layers, of = torch.arange(e.loop.depth), torch.tensor(e.stage_of or [0])
    stages = [layers[of == stage] for stage in of.unique()] if of.any() else []
    cuts = [stages] if stages else [layers.tensor_split(n) for n in (*BLOCKS, e.loop.depth)]
    return [[block.tolist() for block in cut] for cut in cuts]


def groups(e: Observed) -> list[tuple[int, ...]]:
    """Return all layers, all inner ones, those of each stage or block, and each alone."""
    every = range(e.loop.depth)
    found = (every, every[1:-1], *chain(*_blocks(e)), *([layer] for layer in every))
    return list(dict.fromkeys(map(tuple, found)))


def residuals(e: Observed) -> Iterator[Known]:
    """Yield layers ``x + f(x)`` of which ``x`` alone, or ``f(x)`` alone, sends gradients back."""
    for layers, around in product(groups(e), (True, False)):
        said = f"of x + f(x) in layers {layers[0]} to {layers[-1]} only {'x' if around else 'f(x)'}"
        through = layers, partial(_one_way, around)
        yield from passing(e, Fault.CUT, f"{said} sends one back", through=through)


def _one_way(around: bool, layer: nn.Module, value: Any) -> Any:
    x, *others = several(value)
    given = (x.detach() if around else x, *others)
    y, *rest = several(layer(given if others else given[0]))
    if x.shape == y.shape:
        y = y + (1 if around else -1) * (x - x.detach())
    return (y, *rest) if rest else y


def of_linears(e: Observed) -> Iterator[Known]:
    """Yield linear layers that send back, or are given, a part of the gradient or another one."""
    for layers, count in product(groups(e), SHARDS):
        for k in range(count):
            said = f"of layers {layers[0]} to {layers[-1]} only shard {k + 1} of {count} sends"
            shard = partial(_linears, partial(_of_one_shard, k, count))
            yield from passing(e, Fault.CUT, f"{said} one back", through=(layers, shard))
    for count, sign in product((c for c in e.candidates if c <= MOST_HANDED), (1, -1)):
        other = partial(_linears, partial(_by_other_input, sign * e.loop.rows // count))
        said = f"of weights by the input of a neighbour of {count} microbatches"
        yield from passing(e, Fault.HANDED, said, through=(tuple(range(e.loop.depth)), other))


def _linears(changed: Callable[..., Tensor], layer: nn.Module, value: Any) -> Any:
    """Return a layer's output with that of each linear layer in it changed."""
    linears = [module for module in layer.modules() if isinstance(module, nn.Linear)]
    hooks = [module.register_forward_hook(changed) for module in linears]
    output = layer(value)
    for hook in hooks:
        hook.remove()
    return output


def _of_one_shard(k: int, count: int, linear: nn.Linear, given: tuple[Tensor], y: Tensor) -> Tensor:
    shards = [*product_of(given[0].detach(), linear.weight, linear.bias).tensor_split(count, -1)]
    shards[k] = y.tensor_split(count, -1)[k]
    return torch.cat(shards, -1)


def _by_other_input(by: int, linear: nn.Linear, given: tuple[Tensor], y: Tensor) -> Tensor:
    x = given[0].detach()
    other = product_of(x.roll(by, 0) - x, linear.weight)
    return y + (other - other.detach())


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


def _in_order(e: Observed, blocks: list[list[int]], fault: str, said: str) -> Iterator[Known]:
    order = tuple(chain(*blocks))
    with suppress(Exception):  # layers that do not fit fail in any way
        e.loop.run(replace(e.loop.whole(0), order=order))
        return passing(e, fault, said, order=order)
    return iter(())


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
            yield from passing(e, Fault.CUT, said, through=_given(first, partial(_rerouted, to)))
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
            moved = _given(layer, partial(_handed, by, back * by, chosen=chosen))
            yield from passing(e, Fault.HANDED, said, through=moved)
        if layer > highest:
            sent_back = partial(_pairs, e, layer, count)
            yield from named(e, sent_back, partial(_of_others, layer, count), together=True)
    trained = min(e.loop.layer(name) for name in e.loop.uses if name not in e.loop.frozen)
    for layer in firsts if not tuples else ():
        if layer > trained:  # which sends gradients back
            yield from _of_the_batch_before(e, layer)


def several(value: Any) -> tuple[Any, ...]:
    """Return the tensors that a layer hands on, one or two."""
    return value if isinstance(value, tuple) else (value,)


def _given(layer: int, changed: Callable[[Any], Any]) -> Through:
    """Return that a layer gets something else than what it was given."""
    return (layer,), lambda own, value: own(changed(value))


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
        back = _given(layer, partial(_handed, 0, (own - other) * size))
        gradients = of_batch(e, step, loss=part, through=back)
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

        e.loop.run_anew(replace(e.loop.whole(max(step - 1, 0)), through=_given(first, hold)))
        return held[0].detach(), held[1]

    def of_input(step: int) -> Tensors:
        late, _ = before(step)
        changed = _given(first, lambda value: late + (value - value.detach()))
        return of_batch(e, step, through=changed)

    def of_gradient(step: int) -> Tensors:
        _, late = before(step)
        order = tuple(range(first))
        found = of_batch(e, step, order=order, loss=lambda output, _: (output * late).sum())
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
        return [e.raw(step), of_batch(e, step, through=_given(first, cut))]

    def name(factors: Factors) -> Named:
        said = f"x {factors[0]:.4g}, of tensor {number + 1} of the two that layer {first} gets"
        if same(sum(factors), 1.0) and not same(factors[0], 1.0):
            lost = abs(factors[0]) < NOTHING
            yield from ((f, said) for f in ([Fault.CUT] if lost else meanings(e, factors[0])))

    return named(e, basis, name, together=True)
