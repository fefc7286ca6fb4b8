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
from pipekit.parity.of_updates import meanings, sometimes
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

    earlier = partial(of_batch, e, given=lambda _, __, *before: before)
    said = "each update is of the batch before, on the newest weights"
    yield from multiples(e, Fault.EARLIER_BATCH, said, earlier, together=True)
    yield from sometimes(e, Fault.EARLIER_BATCH, earlier)
    uses = {use for entry in e.wrong for use in e.loop.uses[entry.name][1:]}
    for use, k in product(uses, (1, e.steps)):
        said = f"the copy of a shared weight that {use} names"
        fault = Fault.NEVER if k == e.steps else Fault.STALE.format(_updates(k))
        own = tuple(k * (layer == e.loop.layer(use)) for layer in range(depth))
        yield from passing(e, fault, said, behind=k, delays=own)


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


def _groups(e: Observed) -> list[tuple[int, ...]]:
    """Return all layers, all inner ones, those of each stage or block, and each alone."""
    every = range(e.loop.depth)
    found = (every, every[1:-1], *chain(*_blocks(e)), *([layer] for layer in every))
    return list(dict.fromkeys(map(tuple, found)))


def altered(e: Observed) -> Iterator[Known]:
    """Yield layers that compute something else, or send back only a part of the gradients."""
    for layers, (fault, said, change) in product(_groups(e), _changes(e)):
        said = said.format(f"layers {layers[0]} to {layers[-1]}")
        yield from passing(e, fault, said, through=(layers, change))


def _changes(e: Observed) -> Iterator[tuple[str, str, Callable[[nn.Module, Any], Any]]]:
    """Yield a class of fault, what about some layers, and what each gives for its output."""
    for way in ("x", "f(x)"):
        yield Fault.CUT, f"of x + f(x) in {{}} only {way} sends one back", partial(_one_way, way)
    for count in SHARDS:
        for k in range(count):
            shard = partial(_inside, nn.Linear, partial(_of_one_shard, k, count))
            yield Fault.CUT, f"of {{}} only shard {k + 1} of {count} sends one back", shard
        biases = partial(_inside, nn.Linear, partial(_with_biases, count))
        yield Fault.SUMMED, f"each of {count} shards of {{}} adds its bias", biases
    if e.loop.buffers[0]:
        yield Fault.BATCH_NORM, "{} in evaluation mode", _evaluated
        for what in ("mean", "mean and variance"):
            apart = partial(_inside, nn.BatchNorm1d, partial(_statistics_apart, what))
            yield Fault.BATCH_NORM, f"no gradient goes through the {what} in {{}}", apart


def _one_way(way: str, layer: nn.Module, value: Any) -> Any:
    x, *others = several(value)
    given = (x.detach() if way == "x" else x, *others)
    y, *rest = several(layer(given if others else given[0]))
    if x.shape == y.shape:
        y = y + (1 if way == "x" else -1) * (x - x.detach())
    return (y, *rest) if rest else y


def _inside(
    kind: type[nn.Module], changed: Callable[..., Tensor], layer: nn.Module, value: Any
) -> Any:
    """Return a layer's output with that of each module of a kind in it changed."""
    found = [module for module in layer.modules() if isinstance(module, kind)]
    hooks = [module.register_forward_hook(changed) for module in found]
    output = layer(value)
    for hook in hooks:
        hook.remove()
    return output


def _of_one_shard(k: int, count: int, linear: nn.Linear, given: tuple[Tensor], y: Tensor) -> Tensor:
    shards = [*product_of(given[0].detach(), linear.weight, linear.bias).tensor_split(count, -1)]
    shards[k] = y.tensor_split(count, -1)[k]
    return torch.cat(shards, -1)


def _with_biases(count: int, linear: nn.Linear, _: Any, y: Tensor) -> Tensor:
    return y if linear.bias is None else y + (count - 1) * linear.bias


def _by_other_input(by: int, linear: nn.Linear, given: tuple[Tensor], y: Tensor) -> Tensor:
    x = given[0].detach()
    other = product_of(x.roll(by, 0) - x, linear.weight)
    return y + (other - other.detach())


def _evaluated(layer: nn.Module, value: Any) -> Any:
    output = layer.eval()(value)
    layer.train()
    return output


def _statistics_apart(what: str, norm: nn.BatchNorm1d, given: tuple[Tensor], _: Any) -> Tensor:
    variance, mean = torch.var_mean(given[0], 0, correction=0)
    variance = variance if what == "mean" else variance.detach()
    return (given[0] - mean.detach()) * (variance + norm.eps).rsqrt() * norm.weight + norm.bias


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
    for count, sign in product(counts, (1, -1)):
        by_other = partial(_by_other_input, sign * e.loop.rows // count)
        of_all = tuple(range(e.loop.depth)), partial(_inside, nn.Linear, by_other)
        said = f"of weights by the input of a neighbour of {count} microbatches"
        yield from passing(e, Fault.HANDED, said, through=of_all)
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

    def late(what: str, step: int) -> Tensors:
        held: list[Tensor] = []

        def hold(value: Tensor) -> Tensor:
            held.append(value.detach())
            value.register_hook(held.append)
            return value

        def given(value: Tensor) -> Tensor:
            if what == "input":
                return held[0] + (value - value.detach())
            value.register_hook(lambda _: held[1])
            return value

        e.loop.run_anew(replace(e.loop.whole(max(step - 1, 0)), through=_given(first, hold)))
        return of_batch(e, step, through=_given(first, given))

    for what in ("input", "gradient"):
        said = f"layer {first}'s {what} is that of the batch before"
        yield from multiples(e, Fault.HANDED, said, partial(late, what), together=True, first=1)


def _rerouted(to: Sequence[int | None], value: Any) -> Any:
    """Return tensors each of which sends its gradient back for one of them, or for none."""
    if isinstance(value, Tensor) or (None not in to and value[0].shape != value[1].shape):
        return value
    own = zip(value, to, strict=True)
    return tuple(v.detach() + (0 if k is None else value[k] - value[k].detach()) for v, k in own)


def _sent_back(e: Observed, first: int, number: int) -> Iterator[Known]:
    """Yield that of two tensors one's gradient is sent back so many times, or not at all."""
    cut = partial(_rerouted, [None if k == number else k for k in BOTH])

    def basis(step: int) -> list[Tensors]:
        return [e.raw(step), of_batch(e, step, through=_given(first, cut))]

    def name(factors: Factors) -> Named:
        said = f"x {factors[0]:.4g}, of tensor {number + 1} of the two that layer {first} gets"
        if same(sum(factors), 1.0) and not same(factors[0], 1.0):
            lost = abs(factors[0]) < NOTHING
            yield from ((f, said) for f in ([Fault.CUT] if lost else meanings(e, factors[0])))

    return named(e, basis, name, together=True)
