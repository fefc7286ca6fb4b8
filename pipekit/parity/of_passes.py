"""Faults of a pass: older weights, other layers, tensors lost or exchanged between them."""

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
from pipekit.parity.plain_loop import Pass, Tensors, Through
from pipekit.parity.verdict import Fault

MOST_READ = 16  # microbatches, up to which each may read weights of its own
MOST_HANDED = 8  # microbatches that may be exchanged between layers
SHARDS = (2, 4)  # of a layer, over ranks that share it
BOTH = (0, 1)
BLOCKS = (2, 3, 4)  # stages that are tried where their number is not known

Change = Callable[[nn.Module, Any], Any]  # from a layer and its input to its output


def of_batch(e: Observed, step: int, **changed: Any) -> Tensors:
    """Return what a batch's passes give if they are as right, but for what is changed."""
    passes = [replace(part, **changed) for part in e.parts]
    return e.loop.batch(step, passes, anew=True).gradients


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
        yield from _stale(e, k, said, delays=(k,) * depth)
    if e.stage_of is not None and e.stages is not None and e.stages > 1:
        yield from _stale_by_stage(e, e.stages, e.stage_of)
    earlier = partial(of_batch, e, given=lambda _, __, *before: before)
    said = "each update is of the batch before, on the newest weights"
    yield from multiples(e, Fault.EARLIER_BATCH, said, earlier, together=True)
    yield from sometimes(e, Fault.EARLIER_BATCH, earlier)
    for use in {use for entry in e.wrong for use in e.loop.uses[entry.name][1:]}:
        said, there = f"the copy of a shared weight that {use} names", e.loop.layer(use)
        once, never = (tuple(k * (n == there) for n in range(depth)) for k in (1, e.steps))
        yield from _stale(e, 1, said, delays=once)
        yield from passing(e, Fault.NEVER, said, behind=e.steps, delays=never)


def _stale_by_stage(e: Observed, stages: int, stage_of: list[int]) -> Iterator[Known]:
    delays = tuple(stages - 1 - stage for stage in stage_of)
    for backward, read in ((None, "the same"), ((), "the newest")):  # PipeDream, section 3.4
        said = "each stage reads one update older than the next in its forward, "
        said += f"{read} in its backward"
        yield from _stale(e, max(delays), said, "up to ", delays=delays, backward=backward)

    def as_they_come(count: int, step: int) -> Tensors:
        late = [tuple(-((k - delay) // count) for delay in delays) for k in range(count)]
        parts = zip(e.loop.cut(count), late, strict=True)
        return e.loop.batch(step, [replace(p, delays=k, backward=()) for p, k in parts]).gradients

    for count in (count for count in e.candidates if count <= MOST_READ):  # PACI, 2606.07881, 3
        most = -(-max(delays) // count)
        said = f"the forwards of {count} microbatches read what is there, backwards the newest"
        fault = Fault.STALE.format(f"up to {_updates(most)}")
        yield from multiples(e, fault, said, partial(as_they_come, count), most)
    for stage, k in product(range(stages), (1, 2)):
        said = f"stage {stage} alone reads the weights of {_updates(k)} before"
        yield from _stale(e, k, said, delays=tuple(k * (each == stage) for each in stage_of))


def _stale(e: Observed, k: int, said: str, up_to: str = "", **changed: Any) -> Iterator[Known]:
    return passing(e, Fault.STALE.format(up_to + _updates(k)), said, behind=k, **changed)


def _updates(k: int) -> str:
    return f"{k} update{'s' * (k > 1)}"


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


def untold(e: Observed) -> Iterator[Known]:
    """Yield that the parameters which no rank returns are trained with the others."""
    if not e.missing:
        return
    how = (e.microbatches or 1, e.stated.clip_norm)
    held = [{n: w for n, w in own.items() if n not in e.missing} for own in e.loop.weights]
    loop = e.loop.train(e.steps, *how, held)
    said = "right, if those that no rank holds are trained, too"
    yield from multiples(e, Fault.MISSING, said, lambda s: loop.expected(s, *how), together=True)


def orders(e: Observed) -> Iterator[Known]:
    """Yield blocks of layers, perhaps stages, that are left out, run twice or change places."""
    alone = [[layer] for layer in range(e.loop.depth)]
    for blocks in [alone, *_blocks(e)]:
        names = [f"layers {block[0]} to {block[-1]}" for block in blocks]
        for k, name in enumerate(names):
            without, twice = blocks[:k] + blocks[k + 1 :], blocks[: k + 1] + blocks[k:]
            yield from _in_order(e, without, Fault.MISSING, f"without {name}")
            yield from _in_order(e, twice, Fault.ORDER, f"{name} twice")
        for a, b in combinations(range(len(blocks)), 2) if blocks != alone else ():
            order = list(blocks)
            order[a], order[b] = order[b], order[a]
            said = f"{names[a]} and {names[b]} in each other's place"
            yield from _in_order(e, order, Fault.ORDER, said)


def _in_order(e: Observed, blocks: list[list[int]], fault: str, said: str) -> Iterator[Known]:
    order = tuple(chain(*blocks))
    with suppress(Exception):  # layers that do not fit fail in any way
        e.loop.run(0, Pass(order=order))
        return passing(e, fault, said, order=order)
    return iter(())


def _blocks(e: Observed) -> list[list[list[int]]]:
    """Return the layers of each stage, or of each block in several ways to cut the model."""
    layers, of = torch.arange(e.loop.depth), torch.tensor(e.stage_of or [0])
    stages = [layers[of == stage] for stage in of.unique()] if of.any() else []
    cuts = [stages] if stages else [layers.tensor_split(n) for n in BLOCKS]
    return [[block.tolist() for block in cut] for cut in cuts]


def altered(e: Observed) -> Iterator[Known]:
    """Yield layers that compute something else, or send back only a part of the gradients.

    These are all layers, those of each stage or block, or each alone.
    """
    every = range(e.loop.depth)
    groups = (every, *chain(*_blocks(e)), *([layer] for layer in every))
    for layers in dict.fromkeys(map(tuple, groups)):
        for fault, said, change in _changes(e, f"layers {layers[0]} to {layers[-1]}"):
            yield from passing(e, fault, said, through=(layers, change))


def _changes(e: Observed, of: str) -> Iterator[tuple[str, str, Change]]:
    """Yield a class of fault, what about some layers, and what each gives for its output."""
    if e.loop.case.random or e.loop.buffers[0]:
        fault = Fault.DROPOUT if e.loop.case.random else Fault.BATCH_NORM
        yield fault, f"{of} in evaluation mode", _evaluated
    for count in SHARDS:
        biases = _inside(partial(_with_biases, count))
        yield Fault.SUMMED, f"each of {count} shards of {of} adds its bias", biases
        for k in range(count):
            shard = _inside(partial(_of_one_shard, k, count))
            yield Fault.CUT, f"of {of} only shard {k + 1} of {count} sends one back", shard


def _evaluated(layer: nn.Module, value: Any) -> Any:
    output = layer.eval()(value)
    layer.train()
    return output


def _inside(changed: Callable[..., Tensor]) -> Change:
    """Return what a layer gives with the output of each linear layer in it changed."""

    def run(layer: nn.Module, value: Any) -> Any:
        found = [module for module in layer.modules() if isinstance(module, nn.Linear)]
        hooks = [module.register_forward_hook(changed) for module in found]
        output = layer(value)
        for hook in hooks:
            hook.remove()
        return output

    return run


def _with_biases(count: int, linear: nn.Linear, _: Any, y: Tensor) -> Tensor:
    return y if linear.bias is None else y + (count - 1) * linear.bias


def _of_one_shard(k: int, count: int, linear: nn.Linear, given: tuple[Tensor], y: Tensor) -> Tensor:
    shards = [*product_of(given[0].detach(), linear.weight, linear.bias).tensor_split(count, -1)]
    shards[k] = y.tensor_split(count, -1)[k]
    return torch.cat(shards, -1)


def _by_other_input(rows: Tensor, linear: nn.Linear, given: tuple[Tensor], y: Tensor) -> Tensor:
    x = given[0].detach()
    return _instead(y, y + product_of(x[rows] - x, linear.weight))


def between(e: Observed) -> Iterator[Known]:
    """Yield tensors that reach the wrong microbatch of a layer, or are lost on the way."""
    firsts = [n + 1 for n, (a, b) in enumerate(pairwise(e.stage_of or ())) if a != b]
    firsts = firsts or list(range(1, e.loop.depth))
    tuples, trained = e.loop.case.tuples, {*map(e.loop.layer, e.loop.uses.keys() - e.loop.frozen)}
    for first in firsts if tuples else ():
        yield from _of_two(e, first)
    if e.loop.case.coupled:
        return  # whose rows go through in turn, each microbatch alone
    yield from _handed(e, firsts)
    for first in firsts if not tuples else ():
        if first > min(trained):  # which sends gradients back
            yield from _of_the_batch_before(e, first)


def _of_two(e: Observed, first: int) -> Iterator[Known]:
    """Yield that of two tensors' gradients one counts so many times."""

    def detached(number: int, *values: Tensor) -> Sequence[Tensor]:
        cut = len(values) > 1
        return [v.detach() if cut and n == number else v for n, v in enumerate(values)]

    def basis(number: int, step: int) -> list[Tensors]:
        without = _given(first, partial(detached, number))
        return [e.raw(step), of_batch(e, step, through=without)]

    def name(number: int, factors: Factors) -> Named:
        said = f"x {factors[0]:.4g}, of tensor {number + 1} of the two that layer {first} gets"
        if same(sum(factors), 1.0) and not same(factors[0], 1.0):
            lost = abs(factors[0]) < NOTHING
            yield from ((f, said) for f in ([Fault.CUT] if lost else meanings(e, factors[0])))

    for number in BOTH:
        yield from named(e, partial(basis, number), partial(name, number), together=True)


def _handed(e: Observed, firsts: Sequence[int]) -> Iterator[Known]:
    """Yield tensors that are those of other microbatches."""
    every, most = torch.arange(e.loop.rows), MOST_READ if e.stated.microbatches else MOST_HANDED
    counts = [count for count in e.candidates if count <= most]
    orders = {count: others(e.loop.rows, e.loop.rows // count) for count in counts}
    for count, rows in ((n, rows) for n in counts for rows in orders[n]):
        by_other = _inside(partial(_by_other_input, rows))
        said = f"of weights by the input of another of {count} microbatches"
        yield from passing(e, Fault.HANDED, said, through=(tuple(range(e.loop.depth)), by_other))
    # A layer that sends gradients back to others leaves all layers from itself on right.
    highest = max(e.loop.layer(e.loop.uses[entry.name][0]) for entry in e.wrong)
    # Gradients of both that go back to where the inputs are from are those of other targets.
    ways = [("input", (0, 1), True, False), ("gradient", (0, 1), False, True)]
    two = product(BOTH, (False, True)) if e.loop.case.tuples else ()
    ways += [(f"tensor {n + 1} of two", (n, n), True, back) for n, back in two]
    for layer, count, (of, chosen, there, back) in product(firsts, counts, ways):
        for rows in orders[count] if there or layer > highest else ():
            said = f"layer {layer}'s {of} is that of another of {count} microbatches"
            come, go = (rows if there else every), (rows if back else every)
            given = _given(layer, partial(_of_other_rows, come, go, chosen))
            yield from passing(e, Fault.HANDED, said, through=given)


def others(rows: int, size: int) -> list[Tensor]:
    """Return rows that microbatches get of a neighbour, of the last for the first, of the first."""
    every = torch.arange(rows)
    flipped = torch.cat(every.split(size)[::-1])
    return [every.roll(size), every.roll(-size), flipped, every % size]


def _of_other_rows(
    rows: Tensor, back: Tensor, chosen: Sequence[int], *values: Tensor
) -> Sequence[Tensor]:
    """Return tensors, the chosen of other rows, which send gradients back to others again."""
    own = enumerate(values)
    return [_instead(v[rows], v[back]) if n in chosen else v for n, v in own]


def _of_the_batch_before(e: Observed, first: int) -> Iterator[Known]:
    """Yield inputs of a layer, or gradients of these, that are late, from batch to batch."""

    def late(what: str, size: int, step: int) -> Tensors:
        held: list[Tensor] = []

        def hold(value: Tensor) -> Sequence[Tensor]:
            held.append(value.detach())
            value.register_hook(held.append)
            return [value]

        def given(value: Tensor) -> Sequence[Tensor]:
            if what == "input":
                return [_instead(torch.cat([held[0][-size:], value[:-size]]), value)]
            value.register_hook(lambda g: torch.cat([held[1][-size:], g[:-size]]))
            return [value]

        e.loop.run_anew(max(step - 1, 0), Pass(through=_given(first, hold)))
        return of_batch(e, step, through=_given(first, given))

    rows, parts = e.loop.rows, e.stated.microbatches or 1
    for what, size in product(("input", "gradient"), {rows, rows // parts}):
        of = "the batch" if size == rows else f"{size} rows"
        said = f"layer {first}'s {what} is that of {of} before"
        yield from multiples(
            e, Fault.HANDED, said, partial(late, what, size), together=True, first=1
        )


def _instead(value: Tensor, own: Tensor) -> Tensor:
    """Return a value that sends its gradient back to another tensor."""
    return own + (value - own).detach()


def _given(layer: int, changed: Callable[..., Sequence[Tensor]]) -> Through:
    """Return that a layer gets something else than the tensors that it was given."""

    def run(own: nn.Module, value: Any) -> Any:
        given = changed(*(value if isinstance(value, tuple) else (value,)))
        return own(tuple(given) if len(given) > 1 else given[0])

    return (layer,), run
