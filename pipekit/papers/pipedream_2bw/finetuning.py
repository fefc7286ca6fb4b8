"""Fine-tuning what 2BW and vanilla pre-trained (PipeDream-2BW, Table 1), on a task of our own.

MNLI and RACE are not here; the task is to tell which package of Python's standard library a snippet
is from, in files that neither pre-training nor fine-tuning has seen.
"""

import zlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import pandas as pd
import torch
from torch import nn

from pipekit.datasets import python_snippets
from pipekit.engine import Pipeline
from pipekit.metrics import accuracy
from pipekit.models import classifier
from pipekit.papers import saved_trainings
from pipekit.papers.pipedream_2bw import pretraining
from pipekit.papers.pipedream_2bw.pretraining import (
    METHODS,
    NINE_TENTHS,
    POINTS,
    TWO_BW,
    VANILLA,
)
from pipekit.papers.pipedream_2bw.recipe import Training
from pipekit.provenance import provenance

FROM = {
    "Vanilla": (VANILLA, POINTS),
    "Vanilla (90%)": (VANILLA, NINE_TENTHS),
    "2BW": (TWO_BW, POINTS),
    "not pre-trained": (VANILLA, 0),
}
"""Table 1's columns and a control: the method, and the validation whose weights are the start."""


@dataclass(frozen=True)
class Case:
    """All that a fine-tuning depends on.

    Attributes:
        pretraining: what came before.
        start: the validation of it, from 1, whose weights are fine-tuned; 0: the initial ones.
        training: for how long and how; vanilla.
        classes: packages to tell apart.
        rows: snippets to train on.
        test_rows: snippets to test on.
    """

    pretraining: pretraining.Case
    start: int
    training: Training
    classes: int
    rows: int
    test_rows: int

    @property
    def name(self) -> str:
        """All of it, as a file is called."""
        return f"{self.pretraining.name}_from{self.start}_{zlib.crc32(repr(self).encode()):08x}"


def train_all(cases: Sequence[Case], folder: Path) -> pd.DataFrame:
    """Return how each fine-tuning went, measured; those that the folder has are not run again.

    Args:
        cases: what to train; their pre-trainings' weights lie in the folder.
        folder: keeps a JSON file for each case that is done.

    Returns:
        A row for each case and test: ``method``, ``start``, ``seed``, ``step`` and ``accuracy`` of
        the test snippets (%).
    """
    records = saved_trainings.train_or_load(cases, partial(train, folder=folder), folder)
    return pd.DataFrame(
        {
            "method": case.pretraining.method,
            "start": case.start,
            "seed": case.pretraining.seed,
            "step": step,
            "accuracy": 100 * share,
        }
        for case, record in zip(cases, records, strict=True)
        for step, share in record["accuracies"]
    )


def table(frame: pd.DataFrame) -> pd.DataFrame:
    """Return Table 1: the final accuracy (%), mean and standard deviation over the seeds.

    Args:
        frame: what :func:`train_all` returned.
    """
    final = frame[frame["step"] == frame["step"].max()]
    rows = []
    for name, (method, start) in FROM.items():
        own = final.loc[(final["method"] == method) & (final["start"] == start), "accuracy"]
        rows.append({"pre-trained by": name, "accuracy": own.mean(), "std": own.std()})
    return pd.DataFrame(rows).assign(label="measured")


def train(case: Case, folder: Path) -> saved_trainings.Record:
    """Carry out one training here; arguments as for :func:`train_all`."""
    before, training = case.pretraining, case.training
    data = python_snippets(before.training.sequence, case.classes, case.rows, case.test_rows)
    pipeline = Pipeline(
        start(case, folder),
        partial(METHODS[VANILLA], before.stages),
        optimizer=training.optimizer,
        lr_scheduler=training.scheduler,
        loss=nn.CrossEntropyLoss(),
        seed=before.seed,
        clip_norm=training.clip_norm,
    )
    batches = pretraining.take(data, training.batch_rows, training.steps, before.seed)
    tests = data.test_batches(pretraining.EVALUATION_ROWS)
    accuracies, steps = [], 0
    for losses, share in pretraining.course(pipeline, batches, tests, accuracy):
        steps += len(losses)
        accuracies.append([steps, share])
    return {
        "case": asdict(case),
        "accuracies": accuracies,
        "provenance": provenance("measured", before.seed, data=data.source),
    }


def start(case: Case, folder: Path) -> nn.Sequential:
    """Return the pre-trained trunk with a new head, the same for one seed.

    Raises:
        FileNotFoundError: the folder has no such weights: pre-train first.
    """
    before = case.pretraining
    model = before.network.build(before.training.sequence, before.seed)
    if case.start:
        model.load_state_dict(torch.load(before.weights(folder, case.start), weights_only=True))
    torch.manual_seed(before.seed)
    return classifier(model, case.classes)
