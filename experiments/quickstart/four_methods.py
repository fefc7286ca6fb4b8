"""Four pipeline methods train one network on digits: what the quickstart runs and draws."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import product

import pandas as pd
import plotly.graph_objects as go
import torch
from torch import nn

from experiments.quickstart.comparison import accuracy_curves, excerpt, loss_curves
from experiments.study.training import PipelineTraining, Recipe, Training, train_pipeline
from pipekit import plots, schedules
from pipekit.datasets import Dataset
from pipekit.models import convnet
from pipekit.schedules import Schedule
from pipekit.traces import Trace

METHODS: Mapping[str, Callable[[int, int], Schedule]] = {
    "GPipe": schedules.gpipe,
    "PipeDream-Flush": schedules.flush,
    "PipeDream": lambda stages, microbatches: schedules.pipedream(stages),
    "PipeDream-2BW": schedules.two_bw,
}
"""By name, each from stages and microbatches; PipeDream's minibatch is not cut."""

BALANCE: Mapping[int, Sequence[int]] = {2: [7, 7], 4: [3, 2, 2, 7]}
"""Layers of each stage by depth, such that the slowest is as fast as can be on a CPU."""

WINDOW = 20
"""Batches over which a loss is averaged."""


def digits_recipe(
    data: Dataset, batch_rows: int, epochs: int, lr: float, momentum: float, seed: int = 0
) -> Recipe:
    """Return how a small convolutional network is trained by SGD on images of digits."""
    torch.manual_seed(seed)
    model = convnet()
    for layer in model:
        if isinstance(layer, nn.Conv2d | nn.Linear):  # He initialisation: learns from the start
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
    sgd = partial(torch.optim.SGD, lr=lr, momentum=momentum)
    return Recipe(model, data, sgd, batch_rows, epochs, seed)


def train_all(
    recipes: Iterable[Recipe], depths: Sequence[int], microbatches: int, transport: str
) -> Iterator[PipelineTraining]:
    """Train by all of :data:`METHODS` at each depth, one recipe after another.

    Raises:
        ScheduleError: a method cannot be at one of the depths; before the first training.
    """
    made = [
        (name, method(stages, microbatches))
        for stages, (name, method) in product(depths, METHODS.items())
    ]
    for recipe in recipes:
        for name, schedule in made:
            balance = BALANCE.get(schedule.stages, "auto")
            yield train_pipeline(recipe, name, schedule, balance, transport)


def over_other_transport(
    training: PipelineTraining, microbatches: int, transport: str
) -> tuple[str, PipelineTraining]:
    """Train one epoch again over the transport that was not used; also return its name."""
    other = {"threads": "distributed", "distributed": "threads"}[transport]
    once, name, stages = replace(training.recipe, epochs=1), training.name, training.stages
    schedule, balance = METHODS[name](stages, microbatches), BALANCE.get(stages, "auto")
    return other, train_pipeline(once, name, schedule, balance, other)


def plan_and_run(
    training: PipelineTraining, microbatches: int
) -> tuple[str, go.Figure, pd.DataFrame]:
    """Return an epoch's beginning as planned and as executed: file name, figure and numbers."""
    planned = excerpt(Trace.from_schedule(training.run.schedule), microbatches)
    executed = excerpt(training.run.trace, microbatches)
    titles = [f"{training.name}, as planned", f"{training.name}, as executed"]
    stem = f"timeline_{training.name}_{training.stages}_stages".lower().replace(" ", "_")
    both = [planned.frame.assign(label="exact"), executed.frame.assign(label="measured")]
    return stem, plots.compare(planned, executed, titles=titles), pd.concat(both)


def loss_figure(trainings: Sequence[Training], loop: Training) -> go.Figure:
    """Draw the losses of trainings and of their plain loop; the title names the farthest."""
    apart = {each.name: each.last_epoch_loss - loop.last_epoch_loss for each in trainings}
    name, far = max(apart.items(), key=lambda item: abs(item[1]))
    title = f"{name} trains farthest from the plain loop: {far:+.3f} nats in the last epoch"
    curves, axes = loss_curves([*trainings, loop], WINDOW), ("batch", "loss", "method")
    y_title = f"loss (nats), mean of {WINDOW} batches"
    return plots.curves(curves, *axes, title=title, label="measured", y_title=y_title)


def accuracy_figure(trainings: Sequence[Training]) -> go.Figure:
    """Draw the accuracies after each epoch."""
    frame, y = accuracy_curves(trainings), "accuracy (%)"
    final = frame[frame["epoch"] == frame["epoch"].max()]["accuracy"]
    title = f"All methods reach {final.min():.1f} to {final.max():.1f} % on the test images"
    axes = "epoch", "accuracy", "method"
    figure = plots.curves(frame, *axes, title=title, label="measured", y_title=y)
    return figure.update_xaxes(dtick=1)
