"""Training with a schedule by hand: a small network, and a real run."""

from functools import partial

import pandas as pd
import torch
from torch import nn

import pipekit as pk
from pipekit.datasets import digits
from pipekit.explore.page.view import Plot, Timeline, View
from pipekit.models import mlp

WIDTH, DEPTH = 512, 8  # of the network: a perceptron of so many linear layers
ROWS = 64  # of a microbatch
LEAST_BATCHES = 30  # the schedule is run again until it has trained on so many


def with_training(view: View, schedule: pk.Schedule) -> View:
    """Return a view with the run and the losses of a training on scikit-learn's digits."""
    run, losses = _train(schedule)
    data = pd.DataFrame({"batch": range(1, len(losses) + 1), "loss": losses, "run": schedule.title})
    title = f"Trained: loss {losses[0]:.2f} to {losses[-1]:.2f}"
    words = pk.plots.series.Words(title=title, label="measured", y_title="loss (nats)")
    figure = pk.plots.curves(data, "batch", "loss", "run", **words)
    # A single curve needs no legend, and no room for one.
    figure.update_layout(showlegend=False, margin_r=20)
    executed = Timeline(run.trace, title=f"{schedule.title}, as executed")
    return View(view.text, [*view.timelines, executed], {"loss": Plot(figure, data)})


def _train(schedule: pk.Schedule) -> tuple[pk.Run, list[float]]:
    """Run a schedule until there were enough batches; return its last run, and all losses."""
    torch.manual_seed(0)
    pipeline = pk.Pipeline(
        nn.Sequential(nn.Flatten(), *mlp(WIDTH, DEPTH, inputs=8 * 8, outputs=10)),
        schedule,
        optimizer=partial(torch.optim.Adam, lr=0.001),
        loss=torch.nn.CrossEntropyLoss(),
    )
    rows, data = [ROWS * len(batch) for batch in schedule.batches], digits()
    losses: list[float] = []
    while len(losses) < LEAST_BATCHES:
        chance = torch.Generator().manual_seed(len(losses))
        chosen = torch.randint(len(data.train_inputs), (sum(rows),), generator=chance).split(rows)
        run = pipeline.train([(data.train_inputs[n], data.train_targets[n]) for n in chosen])
        losses += run.losses
    return run, losses
