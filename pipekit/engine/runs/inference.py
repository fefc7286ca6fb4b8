"""Forward passes alone: a function of each batch's output, in the order of the batches."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import mul
from typing import Any

import torch
from torch import Tensor

from pipekit.engine.assignment import WorkerReport
from pipekit.engine.config import Loss
from pipekit.losses.checks import is_mean
from pipekit.losses.losses import MeanOver
from pipekit.trees import Tree

Metric = Callable[[Any, Any], Any]
"""``metric(output, target)`` of some rows, one number."""


@dataclass(frozen=True)
class Metrics:
    """Metrics of the same rows, by name, which take the place of a loss."""

    metrics: Mapping[str, Metric | Loss]

    def __call__(self, output: Any, target: Any) -> list[tuple[Tensor, Tensor]]:
        """Return each metric's number, and its count if it is a mean over counted entries."""
        return [
            (torch.as_tensor(metric(output, target)), torch.tensor(_counted(metric, target)))
            for metric in self.metrics.values()
        ]

    def means(self, reports: Sequence[WorkerReport]) -> dict[str, float]:
        """Return each metric's mean over all rows, or over its counted entries."""
        rows = max((report.rows for report in reports), key=len)  # not all workers see all data
        values = results(reports)
        means = {}
        for place, (name, metric) in enumerate(self.metrics.items()):
            numbers = [value[place][0].item() for value in values]
            counts = [value[place][1].item() for value in values]
            if isinstance(metric, MeanOver):
                means[name] = sum(numbers) / sum(counts)
                continue
            weights = rows if is_mean(metric) else [1] * len(rows)
            means[name] = sum(map(mul, numbers, weights)) / sum(rows)
        return means


def _counted(metric: Metric, target: Any) -> float:
    return metric.count(target) if isinstance(metric, MeanOver) else 1.0


def output_alone(output: Tree, target: Tree) -> Tree:
    """Return the output, for predictions without a target."""
    return output


def results(reports: Sequence[WorkerReport]) -> list[Any]:
    """Return the workers' results of each batch's output, in the order of the batches."""
    by_microbatch = {k: value for report in reports for k, value in report.results}
    return [by_microbatch[k] for k in sorted(by_microbatch)]
