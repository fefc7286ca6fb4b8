"""Copies of the weights after some updates, taken while the pipeline runs on."""

from collections import defaultdict
from collections.abc import Collection, Mapping
from typing import Any

from torch import Tensor

from pipekit.engine.observers.observer import Observer, WorkerView
from pipekit.schedules import Op, Step


class WeightsAfter(Observer):
    """Copies every stage's weights after some updates, over threads.

    Validated later, they cost the pipeline no flush, and no stage waits for another.

    Args:
        updates: how many were made; 0 are the initial weights.
        initial: those, by their names in the unsplit model.
    """

    def __init__(self, updates: Collection[int], initial: Mapping[str, Tensor]) -> None:
        self._updates = set(updates)
        self._views: dict[int, WorkerView] = {}
        self.weights: dict[int, dict[str, Tensor]] = defaultdict(dict)
        self.weights[0] = _copied(initial)

    def begin(self, worker: WorkerView) -> None:
        self._views[worker.number] = worker

    def after_step(self, worker: int, step: Step) -> None:
        task = step.task
        if task.op is Op.UPDATE and task.version in self._updates:
            layers = self._views[worker].weights[task.stage].modules[step.slot]
            self.weights[task.version] |= _copied(layers.state_dict())


def _copied(weights: Mapping[str, Any]) -> dict[str, Tensor]:
    return {name: weight.detach().clone() for name, weight in weights.items()}
