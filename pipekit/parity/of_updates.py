"""Faults of updates: multiples of the right gradients, mixtures, and what an optimizer does."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import copy
from dataclasses import replace
from functools import partial
from itertools import accumulate, chain, pairwise

import numpy as np
import torch
from scipy.optimize import nnls
from torch.optim import Optimizer

from pipekit.parity.factors import LEAST, NOTHING, SAME, Factors, constant, same, whole
from pipekit.parity.fit import ROUGHLY, Fits, Known, Named, Source, alike, fit, multiples, named
from pipekit.parity.observed import Entry, Observed
from pipekit.parity.plain_loop import Tensors, late, total
from pipekit.parity.verdict import TOLERANCE, Fault

MOST_GROUPS = 4  # of parameters with other factors, which have a class each

_OPTIMIZERS: dict[str, Callable[..., Optimizer]] = {
    "Adam": torch.optim.Adam,
    "RMSprop": torch.optim.RMSprop,
    "Adagrad": torch.optim.Adagrad,
    "the sign of each number, as Lion's": partial(torch.optim.Adam, betas=(0.0, 0.0)),
    "SGD with Nesterov's momentum": partial(torch.optim.SGD, momentum=0.9, nesterov=True),
}


def frozen(e: Observed) -> Iterator[Known]:
    """Yield that a frozen parameter moves, however it does."""
    if moved := frozenset(entry for entry in e.wrong if entry.name in e.loop.frozen):
        yield Known(Fault.FROZEN, "", moved)


def scaled(e: Observed) -> Iterator[Known]:
    """Yield multiples of the right gradients, in each step another one."""
    each = partial(fit, e, lambda step: [e.raw(step)])
    # One factor of all or of a layer is more precise, and one of a few numbers their own.
    found = each() | each(together=True)
    fits = each(each_step=True) | {n: factors * e.steps for n, factors in found.items()}
    groups, clipped = alike(fits, LEAST), list(_clipped(e, fits))
    for factors, entries in groups:
        by_terms = [factor / e.loop.terms(step) for step, factor in enumerate(factors)]
        if constant(factors):
            # What is as small as the tolerance has any factor: it counts as that of all, or as 0.
            small = (e.ulps(0, n.name, n.values[0], 0 * n.values[0]) for n in entries)
            some = abs(factors[0]) > LEAST and len(entries) < len(e.wrong)
            for fault in () if some and max(small) <= TOLERANCE else meanings(e, factors[0]):
                yield Known(fault, f"x {factors[0]:.4g}", entries)
        elif constant(by_terms):
            fault = Fault.SUMMED if same(by_terms[0], 1.0) else Fault.TERMS
            said = f"over the terms of the batch, then x {by_terms[0]:.4g}"
            yield Known(fault, said, entries)
        elif (counts := whole(factors)) and {*counts} == {0, 1}:
            yield Known(Fault.LOST, _updates(not count for count in counts), entries)
        elif not clipped:
            said = "x " + ", ".join(f"{factor:.4g}" for factor in factors)
            if _by_another_norm(e, factors) or (e.stated.clip_norm and len(groups) == 1):
                yield Known(Fault.CLIPPED, said, entries)
            elif len(groups) == 1:
                fault = Fault.TERMS if _by_other_terms(e, factors) else Fault.RATE
                yield Known(fault, said, entries)
    known = [*clipped, *_once_a_stage(e, fits)]
    if not known and len(groups) > MOST_GROUPS and len(fits) == len(e.wrong):
        said = f"each of {len(groups)} parts of the model has its own"
        known = [Known(Fault.RATE, said, frozenset(fits))]
    yield from known


def _by_other_terms(e: Observed, factors: Factors) -> bool:
    """Return whether divisors are the terms of the batch before, of all so far or of a part."""
    terms = [e.loop.terms(step) for step in range(len(factors))]
    before = [now / old for old, now in pairwise(terms)]
    so_far = [now / all_terms for now, all_terms in zip(terms, accumulate(terms), strict=True)]
    known = all(map(same, factors[1:], before)) or all(map(same, factors, so_far))
    return known or any(
        all(
            any(same(factor * count * e.loop.share(step, part), 1.0) for part in e.loop.cut(count))
            for step, factor in enumerate(factors)
        )
        for count in e.candidates
    )


def _by_another_norm(e: Observed, factors: Factors) -> bool:
    """Return whether a norm becomes the same in which some parameters count otherwise than others.

    These are the first ones, or those of one kind by a part of their name.
    """
    names = [n for n in e.raw(0) if n == e.loop.uses[n][0]]
    norms = torch.tensor([[g[n].norm() for n in names] for g in map(e.raw, range(e.steps))])
    most = [max(float(g.abs().max()) for g in e.raw(s).values()) for s in range(e.steps)]
    own, late = (factors, factors[1:])  # a norm may be that of the update before
    for found, sizes in ((own, most), (own, norms.sum(1)), (late, norms.norm(dim=1))):
        if constant([factor * float(size) for factor, size in zip(found, sizes, strict=False)]):
            return factors[0] > 0
    kinds = {part for name in names for part in name.split(".")[1:]}
    some = [[first < k for first in range(len(names))] for k in range(1, len(names) + 1)]
    some += [[kind in name.split(".") for name in names] for kind in kinds]
    squares, wanted = norms.square(), torch.tensor(factors) ** -2
    for chosen in map(torch.tensor, some if e.steps > 3 and min(factors) > 0 else ()):
        sums = torch.stack([(squares * each).sum(1) for each in (chosen, ~chosen)], 1)
        _, off = nnls((sums / wanted[:, None]).numpy(), np.ones(e.steps))
        if off < SAME:
            return True
    return False


def meanings(e: Observed, factor: float) -> list[str]:
    """Return the classes of which a factor may be."""
    if abs(factor) < LEAST:
        return [Fault.NEVER, Fault.LOST]
    counts = {float(count) for count in (*e.candidates, e.loop.terms(0)) if count > 1}
    stages = range(2, 17) if e.stages is None or e.stages == 1 else (e.stages,)
    found = {
        Fault.SUMMED: any(same(factor, count) for count in counts),
        Fault.AVERAGED_TWICE: any(same(1 / factor, count) for count in counts),
        Fault.TIMES_STAGES: any(same(factor, n) or same(1 / factor, n) for n in stages),
    }
    return [fault for fault, fits in found.items() if fits] or [Fault.SCALED]


def _once_a_stage(e: Observed, fits: Fits) -> Iterator[Known]:
    if not fits or any(not constant(found) or found[0] < LEAST for found in fits.values()):
        return
    depth = sorted((entry.layer[1], factors[0]) for entry, factors in fits.items())
    levels = [1.0]
    for _, factor in reversed(depth):
        if not same(factor, levels[-1]):
            levels.append(factor)
    steps = [after / before for before, after in pairwise(levels)]
    last_is_right = depth[-1][0] < max(entry.layer[1] for entry in e.entries)
    if len(steps) > (0 if last_is_right else 1) and constant(steps):
        said = "from the first stage to the last x "
        said += ", ".join(f"{level:.4g}" for level in reversed(levels))
        yield Known(Fault.ONCE_A_STAGE, said, frozenset(fits))


def _clipped(e: Observed, fits: Fits) -> Iterator[Known]:
    norms, groups = [], alike(fits, LEAST)
    for factors, entries in groups:
        names = {n.name for n in entries if n.name == e.loop.uses[n.name][0]}
        for step, factor in enumerate(factors):
            if 0 < factor < 1 - SAME and names:
                norm = torch.stack([e.raw(step)[n].norm() for n in names]).norm()
                norms.append(factor * float(norm))
    if len(norms) > 1 and constant(norms):
        is_whole = len(groups) == 1 and len(fits) == len(e.entries)
        fault = Fault.CLIPPED if is_whole else Fault.CLIPPED_BY_STAGE
        yield Known(fault, f"to the norm {norms[0]:.4g}, groups: {len(groups)}", frozenset(fits))


def of_the_update(e: Observed) -> Iterator[Known]:
    """Yield what an optimizer does to gradients or adds to them, perhaps late."""
    most = max(float(v.abs().max()) for n in e.wrong for v in n.values[: e.steps])
    before = partial(late, lambda step: {n.name: n.values[step] for n in e.wrong})
    right_late = partial(late, e.raw)

    def clamped(step: int) -> Tensors:
        return {n: g.clamp(-most, most) for n, g in e.raw(step).items()}

    def every(k: int, step: int) -> Tensors:
        now = float((step + 1) % k == 0)
        return total((now, e.raw(s)) for s in range(max(step - k + 1, 0), step + 1))

    def added(step: int) -> list[Tensors]:
        return [e.raw(step), before(step), e.loop.weights[step]]

    def name(factors: Factors) -> Named:
        times, kept, decay = (0.0 if abs(f) < NOTHING / 100 else f for f in factors)
        if times and (kept or decay):
            said = f"x {times:.4g}, {kept:.3g} of the update before, {decay:.3g} of the weight"
            if any(abs(kept - 1 / count) < 1e-3 for count in (1, *e.candidates)):
                yield Fault.KEPT, said
            if kept < 0.999:
                yield Fault.MOMENTUM if kept else Fault.DECAY, said

    yield from multiples(e, Fault.CLIPPED, f"each number to {most:.4g}", clamped)
    yield from named(e, added, name, first=1)
    said = "each update applies the gradient of the one before"
    yield from multiples(e, Fault.LATE, said, right_late)
    for k in range(2, e.steps // 2 + 1):
        said = f"every {k} batches"
        yield from multiples(e, Fault.SEVERAL_BATCHES, said, partial(every, k))
    for other in (before, right_late):
        yield from sometimes(e, Fault.LATE, other)


def sometimes(e: Observed, fault: str, other: Callable[[int], Tensors]) -> Iterator[Known]:
    """Yield that some updates, from the second on, have another gradient, or theirs and another."""

    def name(factors: Factors) -> Named:
        counts = whole(factors)
        own, more = counts[::2], counts[1::2]
        if {*counts} <= {0, 1} and any(more) and own != more:  # else it is every second one
            yield Fault.KEPT if all(own) else fault, _updates([False, *more])

    return named(e, lambda step: [e.raw(step), other(step)], name, each_step=True, first=1)


def _updates(chosen: Iterable[object]) -> str:
    there = (str(number) for number, each in enumerate(chosen, start=1) if each)
    return f"in updates {', '.join(there)}"


def other_optimizers(e: Observed) -> Iterator[Known]:
    """Yield what other optimizers of torch's make of the right gradients, at any rate and decay."""

    def name(said: str, factors: Factors) -> Named:
        rate, decay = factors
        if abs(rate) > LEAST:
            decayed = f" and a weight decay of {decay / rate:.2g}" if decay > SAME * rate else ""
            yield Fault.OPTIMIZER, f"{said}, x {rate:.4g}{decayed}"

    for said, how in _OPTIMIZERS.items():
        weights = {n: torch.zeros_like(g) for n, g in e.raw(0).items()}
        optimizer, updates = how(weights.values(), lr=1.0), list[Tensors]()
        for step in range(e.steps):
            before = {n: w.clone() for n, w in weights.items()}
            for parameter, gradient in e.raw(step).items():
                weights[parameter].grad = gradient
            optimizer.step()
            updates.append({n: before[n] - w for n, w in weights.items()})
        beside = [*zip(updates, e.loop.weights, strict=False)]
        yield from named(e, beside.__getitem__, partial(name, said), rough=True)


def mixed(e: Observed) -> Iterator[Known]:
    """Yield sums over parameters of one shape, as of a reduction over the wrong ranks."""
    shapes: dict[torch.Size, list[str]] = {}
    for name, gradient in e.raw(0).items():
        shapes.setdefault(gradient.shape, []).append(name)

    def basis(names: Sequence[str], step: int) -> list[Tensors]:
        return [dict.fromkeys(names, e.raw(step)[n]) for n in names]

    def mixture(names: Sequence[str], factors: Factors) -> Named:
        there = [(n, f) for n, f in zip(names, factors, strict=True) if abs(f) > NOTHING]
        if there:
            yield Fault.MIXED, " + ".join(f"{factor:.3g} of {name}'s" for name, factor in there)

    for names in (names for names in shapes.values() if len(names) > 1):
        yield from named(e, partial(basis, names), partial(mixture, names))


def placed(e: Observed) -> Iterator[Known]:
    """Yield numbers that are the right ones in other places, of one parameter or of all."""

    def alike(step: int, entries: Sequence[Entry]) -> bool:
        found = torch.cat([n.values[step].flatten() for n in entries]).sort().values
        right = torch.cat([e.right(step)[n.name].flatten() for n in entries]).sort().values
        least = TOLERANCE * max(e.ulp(step, n.name) for n in entries)
        return float((found - right).abs().max()) <= least

    for entries in (*([n] for n in e.wrong), e.wrong):
        if all(alike(step, entries) for step in range(e.steps)):
            yield Known(Fault.PLACES, "as sorted they are right", frozenset(entries))


def in_part(e: Observed, sources: Iterable[Source]) -> Iterator[Known]:
    """Yield what explains the wrong numbers of parameters whose other numbers are right."""
    wholes: dict[Entry, Entry] = {}
    for n in e.wrong:
        steps = range(e.steps)
        off = [(n.values[s] - e.right(s)[n.name]).abs() / e.ulp(s, n.name) for s in steps]
        there = torch.stack(off) > TOLERANCE
        if not there.flatten(1).any(1).all():
            there[:] = there.any(0)  # some updates are right
        if not there.all():
            wholes[replace(n, there=there)] = n
    parts = copy(e)
    parts.entries = parts.wrong = [*wholes]
    for known in chain.from_iterable(source(parts) for source in sources if wholes):
        covers = frozenset(wholes[part] for part in known.covers)
        yield replace(known, said=f"{known.said}, in a part of each", covers=covers)


def rounded(e: Observed) -> Iterator[Known]:
    """Yield gradients that are near the right ones, and weights that two bytes could hold."""

    def name(factors: Factors) -> Named:
        (factor,) = factors
        if abs(factor - 1) < ROUGHLY:
            yield Fault.ROUNDED, "within a fiftieth of the right ones"
        elif abs(factor) > NOTHING:
            for fault in meanings(e, factor):
                yield fault, f"about x {factor:.4g}, in a lower precision"

    near = [*named(e, lambda step: [e.raw(step)], name, rough=True, together=True)]
    # A few that are near prove nothing beside others that are not.
    yield from near if frozenset().union(*(known.covers for known in near)) == {*e.wrong} else ()
    versions = e.loop.weights[1 : e.steps + 1]
    for dtype in (torch.bfloat16, torch.float16):
        short = frozenset(
            n
            for n in e.wrong
            if all(torch.equal(v[n.name].to(dtype).double(), v[n.name]) for v in versions)
        )
        if short:
            yield Known(Fault.ROUNDED, f"weights are kept as {dtype}", short)
