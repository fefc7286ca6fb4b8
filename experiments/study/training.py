"""Whole trainings, a pipeline's and the plain loop's, their weights, and how far these differ."""

import copy
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count, islice
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from pipekit.datasets import Batch, Dataset
from pipekit.devices import CPU
from pipekit.engine import Observer, Pipeline, Run, Watch
from pipekit.engine.observers.observer import WorkerView
from pipekit.engine.options import Execution
from pipekit.host.operator_threads import share_of_cores
from pipekit.schedules import Op, Schedule, Step
from pipekit.units import plural
from pipekit.workloads import accuracy

T = TypeVar("T")
Tensors = Mapping[str, Tensor]  # by name in the unsplit model's state_dict


def bit_equal(a: Tensors, b: Tensors) -> bool:
    """Return whether two sets have the same names and the same bits."""
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def largest_difference(a: Tensors, b: Tensors) -> float:
    """Return the largest absolute difference between two numbers of the same place."""
    return max(float((a[name] - b[name]).abs().max()) for name in a)


def relative_difference(a: Tensors, b: Tensors) -> float:
    """Return ||a - b|| / ||b||, the 2-norms taken over all tensors together."""
    distance = sum(float((a[name] - b[name]).double().square().sum()) for name in a)
    norm = sum(float(b[name].double().square().sum()) for name in b)
    return float((distance / norm) ** 0.5)


def he_initialised(model: nn.Sequential) -> nn.Sequential:
    """Return the same model with first weights from which many layers learn at once."""
    for layer in model:
        if isinstance(layer, nn.Conv2d | nn.Linear):
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
    return model


class TakeGradient(Optimizer):
    """An optimizer after whose step the weights are the gradients that the update got."""

    def __init__(self, parameters: list[nn.Parameter]) -> None:
        super().__init__(parameters, {})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.zero_()
                if parameter.grad is not None:
                    parameter.copy_(parameter.grad)


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


def trained_weights(
    model: nn.Sequential, schedule: Schedule, batches: Sequence[Batch], **how: Any
) -> dict[str, Tensor]:
    """Return a pipeline's weights after a training; ``how`` are its further arguments."""
    pipeline = Pipeline(model, schedule, **how)
    pipeline.train(batches, watch=Watch(trace=False))
    return dict(pipeline.state_dict())


def pipeline_gradients(
    model: nn.Sequential,
    batches: Sequence[Batch],
    schedule: Schedule,
    loss: Callable[[Any, Any], Tensor],
) -> dict[str, Tensor]:
    """Return the gradient that the one update of a schedule gets, by the parameters' names."""
    return trained_weights(model, schedule, batches, optimizer=TakeGradient, loss=loss, seed=0)


def plain_gradients(
    model: nn.Module, batch: Batch, loss: Callable[[Any, Any], Tensor]
) -> dict[str, Tensor]:
    """Return the gradient of an unsplit minibatch by one backward, without the engine."""
    parameters = dict(model.named_parameters())
    found = torch.autograd.grad(loss(model(batch[0]), batch[1]), list(parameters.values()))
    return dict(zip(parameters, found, strict=True))


def noted(modules: Iterable[nn.Module], note: Callable[[nn.Module, Tensor, Tensor], T]) -> list[T]:
    """Return a list that grows by what is noted (of module, input, output) of each forward."""
    found: list[T] = []

    def hook(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        found.append(note(module, inputs[0], output))

    for module in modules:
        module.register_forward_hook(hook)
    return found


def take(data: Dataset, rows: int, batches: int, seed: int) -> list[Batch]:
    """Return so many batches of a data set, of as many epochs as it takes."""
    endless = (batch for epoch in count() for batch in data.batches(rows, seed, epoch))
    return list(islice(endless, batches))


def share_of_rate(step: int, steps: int, warm_up: float) -> float:
    """Return a rate's factor after ``step`` updates: up for a share of them, then down to 0."""
    begun = max(1, round(warm_up * steps))
    return min((step + 1) / begun, (steps - step) / max(1, steps - begun))


EVALUATION_ROWS = 250


@dataclass(frozen=True)
class Recipe:
    """All that a training depends on, but for the method."""

    model: nn.Sequential  # unsplit; a training starts from a copy
    data: Dataset
    optimizer: Callable[[list[nn.Parameter]], Optimizer]
    batch_rows: int  # examples of an update
    epochs: int
    seed: int = 0  # of the shuffling and of the layers' random numbers
    loss: nn.Module = field(default_factory=nn.CrossEntropyLoss)  # of a microbatch, a mean


@dataclass(frozen=True)
class Training:
    """The outcome of a training; every number is measured."""

    name: str
    stages: int
    microbatches: int
    threads: int  # of a worker's operators, which decide how a sum is rounded
    recipe: Recipe
    losses: list[float]  # of each batch, all epochs after one another
    accuracies: list[float]  # on the test set after each epoch (0..1)
    epoch_s: list[float]  # seconds of each, evaluation left out
    weights: list[dict[str, Tensor]] = field(repr=False)  # the unsplit model's after each epoch
    run: Run | None = None  # the last epoch's, by the engine

    @property
    def last_epoch_loss(self) -> float:
        last = self.losses[-len(self.losses) // self.recipe.epochs :]
        return sum(last) / len(last)

    def __str__(self) -> str:
        return (
            f"{self.name}, {plural(self.stages, 'stage')}: {plural(self.recipe.epochs, 'epoch')} "
            f"in {sum(self.epoch_s):.1f} s, accuracy {self.accuracies[-1]:.1%} (measured)"
        )


def train_pipeline(
    recipe: Recipe,
    name: str,
    schedule: Schedule,
    balance: Sequence[int] | str = "auto",
    execution: Execution = Execution(),
) -> Training:
    """Train by a schedule without end; the pipeline drains at the end of each epoch."""
    how: dict[str, Any] = {"optimizer": recipe.optimizer, "loss": recipe.loss, "seed": recipe.seed}
    pipe = Pipeline(recipe.model, schedule, balance=balance, execution=execution, **how)
    runs, accuracies, weights = [], [], []
    tests = recipe.data.test_batches(EVALUATION_ROWS)
    for epoch in range(recipe.epochs):
        runs.append(pipe.train(recipe.data.batches(recipe.batch_rows, recipe.seed, epoch)))
        accuracies.append(pipe.evaluate(tests, accuracy))
        weights.append(dict(pipe.state_dict()))
    return Training(
        name,
        schedule.stages,
        len(runs[-1].schedule.batches[0]),
        share_of_cores(schedule.stages),
        recipe,
        [loss for run in runs for loss in run.losses],
        accuracies,
        [run.wall_s for run in runs],
        weights,
        runs[-1],
    )


def train_plain(recipe: Recipe, microbatches: int = 1, threads: int = 1) -> Training:
    """Train by the loop that every PyTorch tutorial shows: no stages, no schedule, no engine.

    The gradients of a batch's microbatches are added up. A model with dropout will differ.
    """
    model = copy.deepcopy(recipe.model)
    optimizer = recipe.optimizer(list(model.parameters()))
    losses, accuracies, seconds, weights = [], [], [], []
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for epoch in range(recipe.epochs):
            model.train()
            start = time.perf_counter()
            for batch in recipe.data.batches(recipe.batch_rows, recipe.seed, epoch):
                optimizer.zero_grad()
                total = 0.0
                for x, y in zip(*(each.tensor_split(microbatches) for each in batch), strict=True):
                    loss = recipe.loss(model(x), y) * (len(x) / len(batch[0]))
                    loss.backward()
                    total += loss.item()
                optimizer.step()
                losses.append(total)
            seconds.append(time.perf_counter() - start)
            model.eval()
            with torch.no_grad():
                outputs = model(recipe.data.test_inputs)
            accuracies.append(float(accuracy(outputs, recipe.data.test_targets)))
            weights.append({name: tensor.clone() for name, tensor in model.state_dict().items()})
    finally:
        torch.set_num_threads(before)
    return Training(
        "plain loop", 1, microbatches, threads, recipe, losses, accuracies, seconds, weights
    )
