"""Weights of a pipeline after its updates, while it runs on."""

from collections import defaultdict
from collections.abc import Collection

from torch import Tensor, nn

from pipekit.devices import CPU
from pipekit.engine.observers.observer import Observer, WorkerView
from pipekit.schedules import Op, Step


class AfterUpdates(Observer):
    """Shows a subclass each stage's weights after each update, over threads.

    They cost the pipeline no flush, and no stage waits for another.
    """

    def __init__(self) -> None:
        self._views: dict[int, WorkerView] = {}

    def begin(self, worker: WorkerView) -> None:
        self._views[worker.number] = worker

    def after_step(self, worker: int, step: Step) -> None:
        op, stage, _, version = step.task
        if op is Op.UPDATE:
            self.updated(stage, version, self._views[worker].weights[stage].modules[step.slot])

    def updated(self, stage: int, version: int, layers: nn.Module) -> None:
        """See the layers of a stage with a new ``version``, by updates of this run."""


class WeightsAfter(AfterUpdates):
    """Copies all weights after some updates, in ``weights``; those of a ``model`` are at first."""

    def __init__(self, updates: Collection[int], model: nn.Module) -> None:
        super().__init__()
        self._updates = set(updates)
        self.weights: defaultdict[int, dict[str, Tensor]] = defaultdict(dict)
        self.weights[0] = copied(model)

    def updated(self, stage: int, version: int, layers: nn.Module) -> None:
        if version in self._updates:
            self.weights[version] |= copied(layers)


def copied(layers: nn.Module) -> dict[str, Tensor]:
    """Return a copy of the parameters by name, on the CPU, wherever they are."""
    parameters = layers.named_parameters()
    return {name: each.detach().to(CPU, copy=True) for name, each in parameters}
