"""The entries that disagree with the plain loop, and how close two gradients must be."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache, partial

from torch import Tensor

from pipekit.parity.observed import TOLERANCE, ULP, Entry, Observed
from pipekit.parity.plain_loop import LEARNING_RATE, PlainLoop, Tensors

DIVERGED = 16  # times the first batch's largest gradient: float32 then shows no small difference


Prediction = Callable[[int], Tensors]
"""Gradients by step."""


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
        steps: those judged, before the training diverges.
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
        self.steps = next(self._sound_steps())
        self.wrong = [e for e in self.entries if not self.agrees(e, self.right)]

    @property
    def loop(self) -> PlainLoop:
        """The judge."""
        return self.observed.loop

    def agrees(self, entry: Entry, predicted: Prediction) -> bool:
        """Return whether a prediction is an entry's values, within the tolerance, in all steps."""
        return all(
            self.ulps(step, entry.name, entry.values[step], predicted(step)[entry.name])
            <= TOLERANCE
            for step in range(self.steps)
        )

    def ulps(self, step: int, name: str, one: Tensor, other: Tensor) -> float:
        """Return the largest difference of two gradients of a parameter, in ulps.

        An ulp is 2^-23 of the largest weight over the learning rate and the largest gradient: to
        that the change of a float32 weight tells what the gradient was.
        """
        weight = self.loop.weights[step][name].abs().max() / LEARNING_RATE
        size = weight + self.right(step)[name].abs().max() + other.abs().max()
        return float((one - other).abs().max() / (ULP * size))

    def _sound_steps(self) -> Iterator[int]:
        size = max(float(g.abs().max()) for g in self.right(0).values())
        for step in range(1, self.observed.steps):
            if max(float(g.abs().max()) for g in self.right(step).values()) > DIVERGED * size:
                yield step
        yield self.observed.steps
