"""Small language models trained for real by vanilla, 2BW and PipeDream updates (section 5.1)."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count, islice
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch import nn
from torch.types import Device

from experiments import study
from experiments.pipedream_2bw.movement import Movement
from experiments.pipedream_2bw.recipe import AdamRecipe
from pipekit.datasets import Batch, Dataset, masked, python_source
from pipekit.engine import Pipeline, Watch
from pipekit.host.provenance import provenance
from pipekit.models import bert_large, gpt, token_loss
from pipekit.schedules import Schedule, flush, pipedream, two_bw

VANILLA, TWO_BW, PIPEDREAM = "vanilla", "2BW", "PipeDream"

METHODS: Mapping[str, Callable[[int], Schedule]] = MappingProxyType(
    {
        VANILLA: lambda stages: flush(stages, stages),
        TWO_BW: lambda stages: two_bw(stages, stages),
        PIPEDREAM: pipedream,
    }
)
"""By name, each from the number of stages to its schedule; all with the same batch,
which Flush and 2BW cut into as many microbatches as there are stages."""

POINTS = 10
"""Validations of a training, equally far apart; the pipeline drains before each."""
NINE_TENTHS = 9 * POINTS // 10
FINE_TUNED = (NINE_TENTHS, POINTS)
"""The validations, from 1, after which Table 1's fine-tunings start."""
EVALUATION_ROWS = 64


@dataclass(frozen=True, kw_only=True)
class PreTraining(AdamRecipe):
    """All that a training depends on: of a GPT or BERT of bytes, by a key of :data:`METHODS`.

    The seed is of the weights, the order of the rows, the masks and the dropout; ``rows`` windows
    of text are trained on, as often as the steps need.

    Raises:
        ValueError: there are more stages than the network has layers.
    """

    network: str  # "gpt" or "bert"
    layers: int
    hidden: int
    heads: int
    dropout: float
    method: str
    stages: int
    seed: int
    rows: int
    test_rows: int

    def __post_init__(self) -> None:
        if self.stages > (layers := len(self._made("meta"))):
            raise ValueError(
                f"{self.stages} stages of a {self.network} with {layers} layers: use at most "
                f"{layers} stages, or more blocks"
            )

    def build(self) -> nn.Sequential:
        """Return the network with its initial weights."""
        torch.manual_seed(self.seed)
        return self._made()

    def text(self) -> Dataset:
        """Return what it learns from: the next byte (GPT), or the masked ones (BERT)."""
        text = python_source(self.sequence, self.rows + self.test_rows, self.test_rows)
        return masked(text) if self.network == "bert" else text

    def weights(self, folder: Path, point: int) -> Path:
        """Return where the weights after a validation, from 1, are kept."""
        return trainings(folder).file(self).with_suffix(f".{point}of{POINTS}.pt")

    def _made(self, device: Device = None) -> nn.Sequential:
        shape = self.layers, self.hidden, self.heads
        make, vocabulary = {"gpt": (gpt, 256), "bert": (bert_large, 257)}[self.network]
        how: dict[str, Any] = {"vocabulary": vocabulary, "dropout": self.dropout, "device": device}
        return make(*shape, sequence=self.sequence, **how)


def trainings(folder: Path) -> study.Trainings[PreTraining]:
    """Return the trainings of a folder, which also keeps a BERT's weights for fine-tuning.

    Their course has a point a step, from 0, the untrained network's: ``loss`` of the step's batch,
    at the weights that the method reads, ``validation`` loss, at the :data:`POINTS` only, and how
    far the update ``moved`` the weights, relative to their norm.
    """
    return study.Trainings(partial(train, folder=folder), folder)


def train(case: PreTraining, folder: Path) -> study.Course:
    """Carry out one training here; see :func:`trainings`."""
    data, model, movement = case.text(), case.build(), Movement()
    updates = {**case.of_pipeline, "optimizer": movement.watching(case.optimizer)}
    schedule = METHODS[case.method](case.stages)
    pipeline = Pipeline(model, schedule, loss=token_loss, seed=case.seed, **updates)
    losses: list[float | None] = [None]
    validations = {}
    for point, (some, score) in enumerate(course(pipeline, data, case, case.seed)):
        losses += some
        validations[len(losses) - 1] = score
        if case.network == "bert" and point in FINE_TUNED:
            torch.save(pipeline.state_dict(), case.weights(folder, point))
    steps = range(len(losses))
    return study.Course.of(
        provenance("measured", case.seed, data=data.source),
        step=steps,
        loss=losses,
        validation=[validations.get(step) for step in steps],
        moved=[None, *movement.relative],
    )


def course(
    pipeline: Pipeline,
    data: Dataset,
    recipe: AdamRecipe,
    seed: int,
    metric: Callable[[Any, Any], Any] | None = None,
) -> Iterator[tuple[Sequence[float], float]]:
    """Train in :data:`POINTS` pieces; yield the losses of each, and the score after it.

    The first yielded is the untrained network's score, without losses.
    """
    batches = take(data, recipe.batch_rows, recipe.steps, seed)
    tests = data.test_batches(EVALUATION_ROWS)
    yield [], pipeline.evaluate(tests, metric)
    for point in range(POINTS):
        start, stop = (len(batches) * p // POINTS for p in (point, point + 1))
        losses = pipeline.train(batches[start:stop], watch=Watch(trace=False)).losses
        yield losses, pipeline.evaluate(tests, metric)


def take(data: Dataset, batch_rows: int, steps: int, seed: int) -> list[Batch]:
    """Return so many batches, of as many epochs as that takes."""
    endless = (batch for epoch in count() for batch in data.batches(batch_rows, seed, epoch))
    return list(islice(endless, steps))
