"""Faults of layers and parameters: tied, left out, in another order, or what goes between them."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import chain, combinations, pairwise, product
from typing import Any

import torch
from torch import Tensor

from pipekit.parity import faults
from pipekit.parity.evidence import Evidence, Factors
from pipekit.parity.hypothesis import NOTHING, Hypothesis, each, passing, times
from pipekit.parity.observed import TOLERANCE, Entry
from pipekit.parity.plain_loop import Pass, Tensors
from pipekit.parity.ratios import meanings

MOST_HANDED = 8  # microbatches that may be exchanged between layers
BLOCKS = (2, 3, 4)  # stages that are tried where their number is not known


def tied(e: Evidence, count: int = 1) -> Iterator[Hypothesis]:
    """Yield sums over other uses of shared weights, or over the microbatches of each use."""
    for uses in {e.loop.uses[entry.name] for entry in e.wrong}:
        if len(uses) > 1:
            basis = partial(_each_use, e, uses, count)
            yield Hypothesis(basis, each(partial(_of_uses, uses, count)))


def _each_use(e: Evidence, uses: tuple[str, ...], count: int, step: int) -> list[Tensors]:
    parts = [[rows] for rows in e.loop.cut(step, count)] if count > 1 else [e.parts(step)]
    return [dict.fromkeys(uses, e.loop.of_use(step, p, use)) for use in uses for p in parts]


def _of_uses(uses: Sequence[str], count: int, factors: Factors) -> Iterator[tuple[str, str]]:
    sums = [factors[count * k : count * (k + 1)] for k in range(len(uses))]
    if any(all(abs(factor) < NOTHING for factor in of) for of in sums):
        fault = faults.TIED_ONCE
    elif max(factors) > 1 + NOTHING:
        fault = faults.TIED_TWICE
    else:
        lost = any(abs(factor) < NOTHING for factor in factors)
        fault = faults.LOST if lost else faults.AVERAGED_TWICE
    if any(abs(factor) > NOTHING for factor in factors):
        shown = [", ".join(f"{factor + 0.0:.2f}" for factor in of) for of in sums]
        yield fault, "; ".join(f"{s} of its use as {u}" for s, u in zip(shown, uses, strict=True))


def frozen(e: Evidence) -> Iterator[Hypothesis]:
    """Yield that a frozen parameter moves, however it does."""
    own = {entry.name: entry.values for entry in e.wrong if entry.name in e.loop.frozen}
    if own:
        yield Hypothesis(
            lambda step: [{n: values[step] for n, values in own.items()}], times(faults.FROZEN, "")
        )


def left_out(e: Evidence) -> Iterator[Hypothesis]:
    """Yield the model without the layers that nobody has, or that get no gradients."""
    trained = {n for n in e.loop.uses if n not in e.loop.frozen}
    silent = {n.name for n in e.wrong if not any(v.any() for v in n.values[: e.steps])}
    silent |= set(e.observed.missing)
    absent = {e.loop.layer(n) for n in silent} - {e.loop.layer(n) for n in trained - silent}
    if absent:
        which = ", ".join(map(str, sorted(absent)))
        order = [layer for layer in range(e.loop.depth) if layer not in absent]
        yield from _in_order(e, [order], faults.MISSING, f"as if layers {which} were not there")


def orders(e: Evidence) -> Iterator[Hypothesis]:
    """Yield blocks of layers, perhaps stages, that are left out, run twice or change places."""
    for blocks in _blocks(e):
        names = [f"layers {block[0]} to {block[-1]}" for block in blocks]
        for k, name in enumerate(names):
            rest = blocks[:k], blocks[k + 1 :]
            without, twice = [*rest[0], *rest[1]], [*rest[0], blocks[k], blocks[k], *rest[1]]
            yield from _in_order(e, without, faults.MISSING, f"without {name}")
            yield from _in_order(e, twice, faults.ORDER, f"{name} twice")
        for a, b in combinations(range(len(blocks)), 2):
            order = list(blocks)
            order[a], order[b] = order[b], order[a]
            said = f"{names[a]} and {names[b]} in each other's place"
            yield from _in_order(e, order, faults.ORDER, said)


def _blocks(e: Evidence) -> Iterator[list[list[int]]]:
    layers = torch.arange(e.loop.depth)
    if e.stage_of is None or len({*e.stage_of}) == 1:
        for count in (*BLOCKS, e.loop.depth):
            yield [part.tolist() for part in layers.tensor_split(count)]
    else:
        of = torch.tensor(e.stage_of)
        yield [layers[of == stage].tolist() for stage in range(max(e.stage_of) + 1)]


def _in_order(e: Evidence, blocks: list[list[int]], fault: str, said: str) -> Iterator[Hypothesis]:
    order = tuple(chain(*blocks))
    with suppress(Exception):  # layers that do not fit fail in any way
        e.loop.run(replace(e.loop.whole(0), order=order))
        yield passing(e, fault, said, _pass(e, order=order))


def between(e: Evidence) -> Iterator[Hypothesis]:
    """Yield tensors that reach the wrong microbatch of a layer, or are lost on the way."""
    stages = e.stage_of or ()
    firsts = [n + 1 for n, (a, b) in enumerate(pairwise(stages)) if a != b]
    firsts = firsts or list(range(1, e.loop.depth))
    if e.loop.case.tuples:
        for cut in product(firsts, (0, 1)):
            said = f"of tensor {cut[1] + 1} of the two that layer {cut[0]} gets"
            yield passing(e, faults.CUT, said, _pass(e, cut=cut))
        return
    counts = [count for count in e.candidates if count <= MOST_HANDED]
    for layer, count, by, what in product(firsts, counts, (1, -1), ("input", "gradient")):
        shift = by * (e.loop.rows(0) // count)
        handed = (layer, shift, 0) if what == "input" else (layer, 0, shift)
        said = f"layer {layer}'s {what} is that of a neighbour of {count} microbatches"
        yield passing(e, faults.HANDED, said, _pass(e, handed=handed))


def _pass(e: Evidence, **fault: Any) -> Callable[[int], Pass]:
    return lambda step: replace(e.loop.whole(step), **fault)


def mixed(e: Evidence) -> Iterator[Hypothesis]:
    """Yield sums over parameters of one shape, as of a reduction over the wrong ranks."""
    shapes: dict[torch.Size, list[str]] = {}
    for name, gradient in e.raw(0).items():
        shapes.setdefault(gradient.shape, []).append(name)
    for names in shapes.values():
        if len(names) > 1:
            basis = partial(_of_each, e, names)
            yield Hypothesis(basis, each(partial(_mixture, names)))


def _of_each(e: Evidence, names: list[str], step: int) -> list[Tensors]:
    return [dict.fromkeys(names, e.raw(step)[name]) for name in names]


def _mixture(names: list[str], factors: Factors) -> Iterator[tuple[str, str]]:
    there = [(n, f) for n, f in zip(names, factors, strict=True) if abs(f) > NOTHING]
    if there:
        yield faults.MIXED, " + ".join(f"{factor:.3g} of {name}'s" for name, factor in there)


def in_part(e: Evidence) -> Iterator[Hypothesis]:
    """Yield multiples of the right gradient in some numbers of a parameter, right in the others."""
    wrong = {entry.name: _wrong_numbers(e, entry) for entry in e.wrong}
    wrong = {name: there for name, there in wrong.items() if not there.all()}

    def right_elsewhere(step: int) -> Tensors:
        return {n: e.raw(step)[n] * ~there for n, there in wrong.items()}

    def name(factors: Factors) -> Iterator[tuple[str, str]]:
        for fault in meanings(e, factors[0]):
            yield fault, f"x {factors[0]:.4g} in a part of each"

    if wrong:
        yield Hypothesis(
            lambda step: [{n: e.raw(step)[n] * there for n, there in wrong.items()}],
            each(name),
            beside=right_elsewhere,
        )


def _wrong_numbers(e: Evidence, entry: Entry) -> Tensor:
    """Return which numbers of a parameter are wrong in some step."""
    name, steps = entry.name, range(e.steps)
    off = [(entry.values[step] - e.raw(step)[name]).abs() for step in steps]
    return torch.stack(
        [o > TOLERANCE * e.ulp(s, name) for s, o in zip(steps, off, strict=True)]
    ).any(0)
