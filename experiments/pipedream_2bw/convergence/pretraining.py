"""Small language models trained for real by vanilla, 2BW and PipeDream updates (section 5.1)."""

import math
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import count, islice, product
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pandas as pd
import torch
from torch import nn

from experiments.pipedream_2bw.convergence.movement import Movement
from experiments.pipedream_2bw.convergence.recipe import AdamRecipe
from experiments.recorded import saved_trainings
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


@dataclass(frozen=True)
class Network:
    """A GPT or BERT of bytes, ``kind`` "gpt" or "bert"."""

    kind: str
    layers: int
    hidden: int
    heads: int
    dropout: float = 0.1

    def build(self, sequence: int, seed: int) -> nn.Sequential:
        """Return it with its initial weights, for sequences of so many tokens at most."""
        torch.manual_seed(seed)
        shape = self.layers, self.hidden, self.heads
        make, vocabulary = {"gpt": (gpt, 256), "bert": (bert_large, 257)}[self.kind]
        return make(*shape, vocabulary=vocabulary, sequence=sequence, dropout=self.dropout)

    def data(self, sequence: int, rows: int, test_rows: int) -> Dataset:
        """Return what it learns from: the next byte (GPT), or the masked ones (BERT)."""
        text = python_source(sequence, rows + test_rows, test_rows)
        return masked(text) if self.kind == "bert" else text

    def parameters(self, sequence: int) -> int:
        """Return how many parameters it has, for sequences of so many tokens at most."""
        return sum(p.numel() for p in self.build(sequence, seed=0).parameters())

    def __str__(self) -> str:
        return f"{self.kind}-{self.layers}x{self.hidden}"


@dataclass(frozen=True)
class PreTraining:
    """All that a training depends on: a key of :data:`METHODS`, one worker a stage.

    The seed is of the weights, the order of the rows, the masks and the dropout; ``rows`` windows
    of text are trained on, as often as the steps need.
    """

    network: Network
    method: str
    seed: int
    training: AdamRecipe
    stages: int
    rows: int
    test_rows: int

    @property
    def name(self) -> str:
        """All of it, as a file is called: what is varied in words, the whole as a checksum."""
        whole = zlib.crc32(repr(self).encode())
        return f"{self.network}_{self.method}_seed{self.seed}_{whole:08x}"

    def weights(self, folder: Path, point: int) -> Path:
        """Return where the weights after a validation, from 1, are kept."""
        return folder / f"{self.name}_{point}of{POINTS}.pt"


def networks(layers: int, hidden: int, heads: int, dropout: float) -> dict[str, Network]:
    """Return a GPT and a BERT of one shape, by kind."""
    return {kind: Network(kind, layers, hidden, heads, dropout) for kind in ("gpt", "bert")}


@dataclass(frozen=True)
class Study:
    """Pre-trainings that differ by network, method, seed and learning rate alone.

    Raises:
        ValueError: a method has more stages than a network has layers.
    """

    networks: Mapping[str, Network]
    training: AdamRecipe
    stages: Mapping[str, int]
    rows: int
    test_rows: int

    def __post_init__(self) -> None:
        built = [each.build(self.training.sequence, seed=0) for each in self.networks.values()]
        layers, deepest = min(map(len, built)), max(self.stages.values())
        if deepest > layers:
            raise ValueError(
                f"{deepest} stages of networks with {layers} layers each: use at most {layers} "
                "stages, or more blocks"
            )

    def pretraining(self, kind: str, method: str, seed: int, lr: float) -> PreTraining:
        """Return one of them."""
        training, depth = replace(self.training, lr=lr), self.stages[method]
        texts = self.rows, self.test_rows
        return PreTraining(self.networks[kind], method, seed, training, depth, *texts)

    def trainings(self, seeds: int, other_lrs: Sequence[float]) -> list[PreTraining]:
        """Return all networks, methods and seeds, and vanilla and 2BW at other learning rates.

        At the lowest of all these rates these two have as many networks and seeds, since what they
        come to there is compared with what they come to at the training's own; elsewhere it is a
        GPT of one seed.
        """
        lowest = min([self.training.lr, *other_lrs])
        chosen = [*product(self.networks, METHODS, range(seeds), [self.training.lr])]
        for lr in other_lrs:
            whole = lr == lowest
            networks, drawn = (self.networks, seeds) if whole else (("gpt",), 1)
            chosen += product(networks, (VANILLA, TWO_BW), range(drawn), [lr])
        return [self.pretraining(*each) for each in chosen]


def train_all(cases: Sequence[PreTraining], folder: Path) -> pd.DataFrame:
    """Return the course of all trainings, measured; those that the folder has are not run again.

    The folder keeps a JSON file for each case that is done, and of a BERT the weights after the
    validations :data:`FINE_TUNED`.

    A row for each case and step, from 0, the untrained network's: ``network``, ``method``, ``lr``,
    ``seed``, ``step``, ``loss`` (of the step's batch, at the weights that the method reads),
    ``validation`` (loss, at the :data:`POINTS` only) and ``moved`` (how far the update moved the
    weights, relative to their norm).
    """
    records = saved_trainings.train_or_load(cases, partial(train, folder=folder), folder)
    return pd.concat(
        [_frame(case, record) for case, record in zip(cases, records, strict=True)],
        ignore_index=True,
    )


def course(
    pipeline: Pipeline,
    batches: Sequence[Batch],
    tests: Sequence[Batch],
    metric: Callable[[Any, Any], Any] | None = None,
) -> Iterator[tuple[list[float], float]]:
    """Train in :data:`POINTS` pieces; yield the losses of each, and the score after it.

    The first yielded is the untrained network's score, without losses.
    """
    yield [], pipeline.evaluate(tests, metric)
    for point in range(POINTS):
        start, end = (len(batches) * p // POINTS for p in (point, point + 1))
        losses = pipeline.train(batches[start:end], watch=Watch(trace=False)).losses
        yield losses, pipeline.evaluate(tests, metric)


def take(data: Dataset, batch_rows: int, steps: int, seed: int) -> list[Batch]:
    """Return so many batches, of as many epochs as that takes."""
    endless = (batch for epoch in count() for batch in data.batches(batch_rows, seed, epoch))
    return list(islice(endless, steps))


def train(case: PreTraining, folder: Path) -> saved_trainings.Record:
    """Carry out one training here; arguments as for :func:`train_all`."""
    training, movement = case.training, Movement()
    data = case.network.data(training.sequence, case.rows, case.test_rows)
    model = case.network.build(training.sequence, case.seed)
    watched = {**training.for_pipeline, "optimizer": movement.watching(training.optimizer)}
    schedule = METHODS[case.method](case.stages)
    pipeline = Pipeline(model, schedule, loss=token_loss, seed=case.seed, **watched)
    batches = take(data, training.batch_rows, training.steps, case.seed)
    tests = data.test_batches(EVALUATION_ROWS)
    losses, validations = [], []
    for point, (some, validation) in enumerate(course(pipeline, batches, tests)):
        losses += some
        validations.append([len(losses), validation])
        if case.network.kind == "bert" and point in FINE_TUNED:
            torch.save(pipeline.state_dict(), case.weights(folder, point))
    return {
        "case": asdict(case),
        "losses": losses,
        "validations": validations,
        "moved": movement.relative,
        "provenance": provenance("measured", case.seed, data=data.source),
    }


def _frame(case: PreTraining, record: saved_trainings.Record) -> pd.DataFrame:
    steps = range(len(record["losses"]) + 1)
    own = {"network": case.network.kind, "method": case.method, "lr": case.training.lr}
    frame = pd.DataFrame({**own, "seed": case.seed, "step": steps})
    validations = frame["step"].map(dict(record["validations"]))
    losses, moved = ([math.nan, *record[name]] for name in ("losses", "moved"))
    return frame.assign(loss=losses, validation=validations, moved=moved)
