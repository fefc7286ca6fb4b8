"""Fine-tuning what 2BW and vanilla pre-trained (PipeDream-2BW, Table 1), on a task of our own.

MNLI and RACE are not here; the task is to tell which package of Python's standard library a snippet
is from, in files that neither pre-training nor fine-tuning has seen.
"""

import zlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

import pandas as pd
import torch
from torch import nn

from experiments.pipedream_2bw.convergence import pretraining
from experiments.pipedream_2bw.convergence.pretraining import (
    METHODS,
    NINE_TENTHS,
    POINTS,
    TWO_BW,
    VANILLA,
)
from experiments.pipedream_2bw.convergence.recipe import AdamRecipe
from experiments.recorded import saved_trainings
from pipekit.datasets import python_snippets
from pipekit.engine import Pipeline
from pipekit.host.provenance import provenance
from pipekit.metrics import accuracy
from pipekit.models import classifier

FROM = {
    "Vanilla": (VANILLA, POINTS),
    "Vanilla (90%)": (VANILLA, NINE_TENTHS),
    "2BW": (TWO_BW, POINTS),
    "not pre-trained": (VANILLA, 0),
}
"""Table 1's columns and a control: the method, and the validation whose weights are the start."""


@dataclass(frozen=True)
class FineTuning:
    """All that a fine-tuning depends on.

    It starts from the weights of a validation of its pre-training, from 1; 0: the initial ones.
    ``rows`` and ``test_rows`` are snippets, of so many classes (packages).
    """

    pretraining: pretraining.PreTraining
    start: int
    training: AdamRecipe
    classes: int
    rows: int
    test_rows: int

    @property
    def name(self) -> str:
        """All of it, as a file is called."""
        return f"{self.pretraining.name}_from{self.start}_{zlib.crc32(repr(self).encode()):08x}"


def trainings(study: pretraining.Study, steps: int, seeds: int, *snippets: int) -> list[FineTuning]:
    """Return the fine-tunings of all starts of :data:`FROM`; of classes, rows and test rows."""
    training, lr = replace(study.training, steps=steps), study.training.lr
    return [
        FineTuning(study.pretraining("bert", method, seed, lr), start, training, *snippets)
        for method, start in FROM.values()
        for seed in range(seeds)
    ]


def task(sequence: int, classes: int, rows: int, test_rows: int) -> str:
    """Return which packages are told apart, in words; arguments as for :func:`trainings`."""
    return python_snippets(sequence, classes, rows, test_rows).source.partition(": ")[2]


def train_all(cases: Sequence[FineTuning], folder: Path) -> pd.DataFrame:
    """Return how each fine-tuning went, measured; those that the folder has are not run again.

    Their pre-trainings' weights lie in the folder. A row for each case and test: ``method``,
    ``start``, ``seed``, ``step`` and ``accuracy`` of the test snippets (%).
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
    """Return Table 1: the final accuracy (%), mean and standard deviation over the seeds."""
    final = frame[frame["step"] == frame["step"].max()].groupby(["method", "start"])["accuracy"]
    found = final.agg(["mean", "std"]).loc[list(FROM.values())].reset_index(drop=True)
    named = found.rename(columns={"mean": "accuracy"}).assign(label="measured")
    named.insert(0, "pre-trained by", list(FROM))
    return named


def beside_paper(table: pd.DataFrame) -> pd.DataFrame:
    """Return :func:`table` with the paper's columns beside it."""
    paper = {"MNLI (paper)": ["87.77", "N/A", "87.82", ""]}
    paper["RACE (paper)"] = ["80.06", "79.30", "79.48", ""]
    return table.assign(**paper)


def gains(table: pd.DataFrame) -> str:
    """Return by how many points each start of :func:`table` is above the control, as text."""
    control = table["accuracy"].iloc[-1]
    return ", ".join(f"{gain:+.1f}" for gain in table["accuracy"].iloc[:-1] - control)


def train(case: FineTuning, folder: Path) -> saved_trainings.Record:
    """Carry out one training here; arguments as for :func:`train_all`."""
    before, training = case.pretraining, case.training
    data = python_snippets(before.training.sequence, case.classes, case.rows, case.test_rows)
    model, schedule = start(case, folder), METHODS[VANILLA](before.stages)
    how = {"loss": nn.CrossEntropyLoss(), "seed": before.seed, **training.for_pipeline}
    pipeline = Pipeline(model, schedule, **how)
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


def start(case: FineTuning, folder: Path) -> nn.Sequential:
    """Return the pre-trained trunk with a new head, the same for one seed."""
    before = case.pretraining
    model = before.network.build(before.training.sequence, before.seed)
    if case.start:
        model.load_state_dict(torch.load(before.weights(folder, case.start), weights_only=True))
    torch.manual_seed(before.seed)
    return classifier(model, case.classes)
