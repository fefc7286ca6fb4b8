"""Fine-tuning what 2BW and vanilla pre-trained (PipeDream-2BW, Table 1), on a task of our own.

MNLI and RACE are not here; the task is to tell which package of Python's standard library a snippet
is from, in files that neither pre-training nor fine-tuning has seen.
"""

from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import nn

from experiments import study
from experiments.pipedream_2bw.pretraining import METHODS, VANILLA, PreTraining, course
from pipekit.datasets import python_snippets
from pipekit.engine import Pipeline
from pipekit.host.provenance import provenance
from pipekit.metrics import accuracy
from pipekit.models import classifier


@dataclass(frozen=True)
class FineTuning:
    """All that a fine-tuning depends on.

    It starts from the weights of a validation of its pre-training, from 1; 0: the initial ones.
    ``rows`` and ``test_rows`` are snippets, of so many classes (packages).
    """

    start: str  # in words
    point: int
    before: PreTraining
    steps: int
    classes: int
    rows: int
    test_rows: int

    def model(self, folder: Path) -> nn.Sequential:
        """Return the pre-trained trunk with a new head, the same for one seed."""
        model = self.before.build()
        if self.point:
            kept = self.before.weights(folder, self.point)
            model.load_state_dict(torch.load(kept, weights_only=True))
        torch.manual_seed(self.before.seed)
        return classifier(model, self.classes)


def train(case: FineTuning, folder: Path) -> study.Course:
    """Fine-tune here, from weights in the folder; return step and ``accuracy`` (%) of each test."""
    before, recipe = case.before, replace(case.before, steps=case.steps)
    data = python_snippets(before.sequence, case.classes, case.rows, case.test_rows)
    schedule, loss = METHODS[VANILLA](before.stages), nn.CrossEntropyLoss()
    how = {"loss": loss, "seed": before.seed, **recipe.of_pipeline}
    pipeline = Pipeline(case.model(folder), schedule, **how)
    steps, accuracies = [0], []
    for losses, share in course(pipeline, data, recipe, before.seed, accuracy):
        steps.append(steps[-1] + len(losses))
        accuracies.append(100 * share)
    about = provenance("measured", before.seed, data=data.source)
    return study.Course.of(about, step=steps[1:], accuracy=accuracies)
