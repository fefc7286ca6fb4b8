"""The entries that disagree with the plain loop, and which gradients add up to them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache, partial

import torch
from torch import Tensor

from pipekit.parity.observed import TOLERANCE, ULP, Entry, Observed
from pipekit.parity.plain_loop import LEARNING_RATE, PlainLoop, Rows, Tensors

DIVERGED = 16  # times the first batch's largest gradient: float32 then shows no small difference
OVERDETERMINED = 4  # numbers for each factor, at least
DEPENDENT = 3e-5  # share of the largest singular value, below which gradients are no basis
ROUGHLY = 0.01  # of a gradient's size: bfloat16 keeps eight bits

Prediction = Callable[[int], Tensors]
"""Gradients by step."""
Basis = Callable[[int], Sequence[Tensors]]
"""Gradients by step that count so many times each."""
Factors = tuple[float, ...]


@dataclass
class Evidence:
    """What is to be explained.

    Attributes:
        observed: the trainer.
        entries: of its parameters, by updates or by gradients.
        microbatches: as stated or found, or None.
        candidates: the numbers of microbatches that are possible.
        stages: of the pipeline, or None.
        stage_of: the stage of each layer, where it is known.
        right: what each update should have been given; ``raw``: before clipping.
        steps: how many are judged, before the training diverges.
        wrong: the entries that disagree.
    """

    observed: Observed
    entries: Sequence[Entry]
    microbatches: int | None
    candidates: Sequence[int]
    stages: int | None
    stage_of: Sequence[int] | None
    right: Prediction = field(init=False)
    raw: Prediction = field(init=False)
    steps: int = field(init=False)
    wrong: list[Entry] = field(init=False)

    def __post_init__(self) -> None:
        count, clip_norm = self.microbatches or 1, self.observed.stated.clip_norm
        self.raw = cache(partial(self.loop.expected, microbatches=count))
        self.right = cache(partial(self.loop.expected, microbatches=count, clip_norm=clip_norm))
        sizes = [self._size(step) for step in range(self.observed.steps)]
        self.steps = next((s for s, z in enumerate(sizes) if z > DIVERGED * sizes[0]), len(sizes))
        self.wrong = [e for e in self.entries if not self.agrees(e, self.right)]

    @property
    def loop(self) -> PlainLoop:
        """The judge."""
        return self.observed.loop

    def parts(self, step: int) -> list[Rows]:
        """Return the rows of the trainer's microbatches, as far as their number is known."""
        return self.loop.cut(step, self.microbatches or 1)

    def agrees(self, entry: Entry, predicted: Prediction) -> bool:
        """Return whether a prediction is an entry's values, within the tolerance, in all steps."""
        return all(
            self.ulps(step, entry.name, entry.values[step], predicted(step)[entry.name])
            <= TOLERANCE
            for step in range(self.steps)
        )

    def ulps(self, step: int, name: str, one: Tensor, other: Tensor) -> float:
        """Return the largest difference of two gradients of a parameter, in ulps."""
        size = self.ulp(step, name) + ULP * float(other.abs().max())
        return float((one - other).abs().max()) / size

    def ulp(self, step: int, name: str) -> float:
        """Return 2^-23 of a parameter's largest weight over the learning rate and gradient.

        To that the change of a float32 weight tells what the gradient was.
        """
        weight = self.loop.weights[step][name].abs().max() / LEARNING_RATE
        return ULP * float(weight + self.right(step)[name].abs().max())

    def fitted(
        self,
        entries: Sequence[Entry],
        basis: Basis,
        beside: Prediction | None,
        rough: bool,
        steps: Sequence[int],
    ) -> tuple[Factors | None, list[Entry]]:
        """Return factors, alike in all steps, with which gradients add up to some entries.

        Args:
            entries: whose values are to be added up.
            basis: the gradients.
            beside: a prediction that counts once in any case.
            rough: whether a hundredth of an entry's size is near enough.
            steps: those that count.

        Returns:
            The factors, None if the entries do not determine them; and those that they explain.
        """
        of = {id(n): [self._columns(n, s, basis, beside) for s in steps] for n in entries}
        rows = [each for found in of.values() for each in found]
        matrix, wanted = (torch.cat(each) for each in zip(*rows, strict=True))
        found = torch.linalg.lstsq(matrix, wanted[:, None], rcond=DEPENDENT, driver="gelsd")
        factors, size = found.solution[:, 0], matrix.shape[1]
        if len(matrix) < OVERDETERMINED * size or found.rank < size:
            return None, []

        def fits(entry: Entry) -> bool:
            pairs = [(columns @ factors, value) for columns, value in of[id(entry)]]
            if rough:
                return all((a - b).norm() <= ROUGHLY * b.norm() for a, b in pairs)
            return all(
                self.ulps(s, entry.name, *pair) <= TOLERANCE
                for s, pair in zip(steps, pairs, strict=True)
            )

        return tuple(factors.tolist()), [entry for entry in entries if fits(entry)]

    def _columns(
        self, entry: Entry, step: int, basis: Basis, beside: Prediction | None
    ) -> tuple[Tensor, Tensor]:
        value = entry.values[step] - (beside(step)[entry.name] if beside else 0)
        columns = [gradients[entry.name].flatten() for gradients in basis(step)]
        return torch.stack(columns, 1), value.flatten()

    def _size(self, step: int) -> float:
        return max(float(g.abs().max()) for g in self.right(step).values())
