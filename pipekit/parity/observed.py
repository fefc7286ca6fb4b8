"""What a trainer did beside the plain loop: its ranks joined, each update as a gradient."""

from collections import ChainMap
from collections.abc import Callable, Iterable, Sequence
from copy import copy
from dataclasses import dataclass
from functools import cache, partial
from itertools import pairwise, product
from math import isclose

import torch
from torch import Tensor

from pipekit.parity.adapter import RankRecord
from pipekit.parity.plain_loop import LEARNING_RATE, Pass, PlainLoop, Tensors
from pipekit.parity.verdict import LOSS, TOLERANCE

ULP, TINY = 2.0**-23, 2.0**-149  # of a float32 that is 1, and the least one above 0
DIVERGED = 16  # times the first batch's largest gradient: float32 then shows no small difference


@dataclass(frozen=True, eq=False)
class Entry:
    """A parameter as one rank, or all ranks alike, have trained it."""

    name: str
    values: tuple[Tensor, ...]  # given to SGD in each update, as it seems, or by gradients()
    layer: tuple[int | None, int]  # the rank, where ranks differ, and the model's layer
    there: Tensor | None = None  # by step, which of its numbers are judged; None: all

    def judged(self, step: int, numbers: Tensor) -> Tensor:
        """Return those of a parameter's numbers that are judged."""
        return numbers.flatten() if self.there is None else numbers[self.there[step]]


class Observed:
    """The records of all ranks, beside the plain loop, whose weights become the trainer's.

    Attributes:
        entries: of its parameters, by updates; :meth:`by_gradients` has what it returned itself.
        wrong: those that disagree with the plain loop.
        right: what each update should have been given; ``raw``: before clipping.
        finite: how many updates are before the first that gives numbers which are not finite.
        steps: how many of these are judged, before the training diverges.
        candidates: the numbers of microbatches that are possible.
        microbatches: as stated or found, or None.
        stages: of the pipeline, or None; ``stage_of`` each layer, where it is known.
    """

    def __init__(self, loop: PlainLoop, records: Sequence[RankRecord]) -> None:
        self.loop, self.records, self.stated = loop, records, records[0].stated
        all_steps = len(loop.batches)
        self.finite = next((s for s in range(all_steps) if not self._is_finite(s)), all_steps)
        self.steps = self.finite
        start, own = self._joined(0, loop.weights[0]), loop.weights[0]
        self.other_start = [n for n in own if not torch.equal(start[n].float(), own[n].float())]
        loop.weights[0] = start
        for version in range(1, self.steps + 1):
            for tensors in (loop.weights, loop.buffers):
                tensors.append(self._joined(version, tensors[-1]))
        self.held = {name for record in records for name in record.parameters[-1]}
        used = {use for name in self.held for use in loop.uses.get(name, ())}
        self.missing = [n for n in loop.uses if n not in used and n not in loop.frozen]
        self.differing = {n: update for n in loop.uses if (update := self._parted(n))}
        self.entries = self._entries(self._updates)
        self.microbatches, odd = self.stated.microbatches, loop.case.odd
        some = (n for n in range(2, loop.rows + 1) if loop.rows % n == 0 or (odd and n <= 16))
        self.candidates = [self.microbatches] if self.microbatches else [*some]
        if self.microbatches is None and loop.case.coupled:
            few = [1, *(n for n in self.candidates if n <= loop.rows // 4)]
            self.microbatches = max(few, key=self._likeness)
        self.stages = self.stated.stages or (len(records) if len(records) > 1 else None)
        self.stage_of = self._stage_of()
        self.raw = cache(partial(loop.expected, microbatches=self.microbatches or 1))
        self.right = cache(partial(self.raw, clip_norm=self.stated.clip_norm))
        self.ulp = cache(self._ulp)
        found = map(self.right, range(self.finite))
        sizes = [max(float(g.abs().max()) for g in right.values()) for right in found]
        far = (step for step, size in enumerate(sizes) if size > DIVERGED * sizes[0])
        self.steps = next(far, self.finite)
        self.wrong = self._wrong()

    def by_gradients(self) -> "Observed | None":
        """Return the same with the gradients that it returned itself, if it did."""
        if all(record.gradients is None for record in self.records):
            return None
        other = copy(self)
        other.entries = self._entries(self._gradients)
        other.wrong = other._wrong()
        return other

    def replicas(self) -> list["Observed"]:
        """Return itself, or of ranks that differ each set that holds the model once.

        What a replica does is judged at its own weights, up to the update that parts it from the
        others: later ones may add gradients of other weights to its own.
        """
        held = ([r for r in self.records if n in r.parameters[-1]] for n in self.loop.uses)
        holders = [ranks for ranks in held if ranks]
        count = min(map(len, holders), default=1)
        if not self.differing or count == 1:
            return [self]
        sets = ({id(ranks[k]): ranks[k] for ranks in holders} for k in range(count))
        case, batches = self.loop.case, self.loop.batches[: min(self.differing.values())]
        return [Observed(PlainLoop(case, batches), [*ranks.values()]) for ranks in sets]

    def losses(self, step: int) -> list[float]:
        return [loss for r in self.records if (loss := r.losses[step]) is not None]

    @property
    def of_losses(self) -> list[float]:
        """By what the reported losses are multiplied."""
        right = [self.loop.batch(step, self.parts).loss for step in range(self.steps)]
        return [loss / own for step, own in enumerate(right) for loss in self.losses(step)]

    @property
    def parts(self) -> list[Pass]:
        """The passes of rows that the trainer lets see one another, as far as that is known."""
        return self.loop.together(self.microbatches or 1)

    def off(self, entry: Entry) -> float:
        """Return the largest difference of an entry from the right values, in ulps."""
        return max(
            self.ulps(step, entry.name, entry.values[step], self.right(step)[entry.name])
            for step in range(self.steps)
        )

    def ulps(self, step: int, name: str, one: Tensor, other: Tensor) -> float:
        """Return the largest difference of two gradients of a parameter, in ulps."""
        size = self.ulp(step, name) + ULP * float(other.abs().max())
        return float((one - other).abs().max()) / max(size, TINY)

    def _wrong(self) -> list[Entry]:
        return [entry for entry in self.entries if self.off(entry) > TOLERANCE]

    def _ulp(self, step: int, name: str) -> float:
        """Return how precisely the change of a float32 weight tells what the gradient was."""
        weight = self.loop.weights[step][name].abs().max() / LEARNING_RATE
        return ULP * float(weight + self.right(step)[name].abs().max())

    def _is_finite(self, step: int) -> bool:
        found = [r.parameters[step + 1] for r in self.records]
        found += [r.gradients[step] for r in self.records if r.gradients is not None]
        return all(bool(t.isfinite().all()) for tensors in found for t in tensors.values())

    def _joined(self, version: int, instead: Tensors) -> Tensors:
        """Return each tensor of a version from the first rank that holds it, by any name."""
        held, joined = ChainMap(*(record.parameters[version] for record in self.records)), {}
        for name, own in instead.items():
            uses = (use for use in (name, *self.loop.uses.get(name, ())) if use in held)
            joined[name] = held.get(next(uses, name), own).to(own.dtype)
        return joined

    def _parted(self, name: str) -> int:
        """Return the update after which ranks hold different copies, or 0."""
        held = [r.parameters for r in self.records if name in r.parameters[-1]]
        for v, own in product(range(1, self.steps + 1), held[1:]):
            if (own[v][name] - held[0][v][name]).abs().max() > 2 * ULP * held[0][v][
                name
            ].abs().max():
                return v
        return 0

    def _entries(self, values_of: Callable[[RankRecord, str], Iterable[Tensor]]) -> list[Entry]:
        entries: dict[tuple[str, int | None], Entry] = {}
        for number, record in enumerate(self.records):
            for name in (n for n in record.parameters[-1] if n in self.loop.uses):
                rank = number if name in self.differing else None
                if (name, rank) not in entries and (values := tuple(values_of(record, name))):
                    entries[name, rank] = Entry(name, values, (rank, self.loop.layer(name)))
        return list(entries.values())

    def _updates(self, record: RankRecord, name: str) -> Iterable[Tensor]:
        start = record.parameters[0].get(name, self.loop.weights[0][name])
        held = [start, *(version[name] for version in record.parameters[1 : self.steps + 1])]
        return ((a.double() - b.double()) / LEARNING_RATE for a, b in pairwise(held))

    def _gradients(self, record: RankRecord, name: str) -> Iterable[Tensor]:
        found = () if name in self.loop.frozen else record.gradients or ()
        return (tensors[name].double() for tensors in found[: self.steps])

    def _likeness(self, microbatches: int) -> tuple[bool, float]:
        loss, right, _ = self.loop.batch(0, self.loop.together(microbatches))
        pairs = ((n.values[0].flatten(), right[n.name].flatten()) for n in self.entries)
        like = sum(float(torch.cosine_similarity(*pair, 0)) for pair in pairs)
        return any(isclose(loss, own, rel_tol=LOSS) for own in self.losses(0)), like

    def _stage_of(self) -> list[int] | None:
        depth, uses = self.loop.depth, self.loop.uses
        if self.stated.stages:
            parts = torch.arange(depth).tensor_split(self.stated.stages)
            balance = self.stated.balance or [len(part) for part in parts]
            return [stage for stage, layers in enumerate(balance) for _ in range(layers)]
        held = [[self.loop.layer(n) for n in r.parameters[-1] if n in uses] for r in self.records]
        ends = sorted((min(own), max(own)) for own in held if own)
        if any(a[1] >= b[0] for a, b in pairwise(ends)):
            return None  # several stages a rank
        return [sum(first <= layer for first, _ in ends[1:]) for layer in range(depth)]
