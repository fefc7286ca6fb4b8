"""Statistical efficiency: how many epochs to a target accuracy (PipeDream, sections 2.1 and 3.4).

Real trainings of a small network on real images, one for each method and seed.  Learning rate,
momentum and rows a machine are those that the paper gives VGG16 (section 5.1), for every method.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import nn

from pipekit.datasets import mnist
from pipekit.metrics import accuracy
from pipekit.models.small import image_mlp
from pipekit.papers import saved_trainings
from pipekit.papers.pipedream.settings import TRAININGS
from pipekit.papers.training import PipelineTraining, Recipe, train_pipeline
from pipekit.provenance import provenance
from pipekit.schedules import Schedule, asp, pipedream

VGG16 = TRAININGS["vgg16"]

SGD = "SGD, 1 worker"
STASHING = "PipeDream 1-1-1-1"
VERTICAL_SYNC = "PipeDream 1-1-1-1 + vertical sync"
NAIVE = "naive 1-1-1-1, no stashing"
ASP, ASP_LATER = "ASP, 4 workers, delay 3", "ASP, 4 workers, delay 7"

METHODS: Mapping[str, Callable[[int], Schedule]] = MappingProxyType(
    {
        SGD: partial(pipedream, 1),
        STASHING: partial(pipedream, 4),
        VERTICAL_SYNC: partial(pipedream, 4, vertical_sync=True),
        NAIVE: partial(pipedream, 4, stashing=False),
        "PipeDream 2-1-1": partial(pipedream, [2, 1, 1]),
        "BSP, 4 workers": partial(pipedream, [4]),
        ASP: partial(asp, 4),
        ASP_LATER: partial(asp, 4, delay=7),
        "PipeDream 7-1": partial(pipedream, [7, 1]),
        "BSP, 8 workers": partial(pipedream, [8]),
        "PipeDream 9-5-1-1": partial(pipedream, [9, 5, 1, 1]),
        "BSP, 16 workers": partial(pipedream, [16]),
    }
)
"""By name, each from the number of minibatches to its schedule.  ASP's delays are the shortest that
there is, without a network, and that of gradients which travel for as long as a minibatch takes."""

SETTING = ["method", "lr", "depth", "width"]
"""The columns that tell trainings apart which are to be averaged over seeds."""


@dataclass(frozen=True)
class Case:
    """All that a training depends on.

    Attributes:
        method: a key of :data:`METHODS`.
        seed: of the weights and of the order of the images.
        epochs: passes over the 4,000 training images; the pipeline drains after each.
        lr: learning rate of SGD.
        depth: linear layers of the network, cut into stages of equally many.
        width: features of its hidden layers.
    """

    method: str
    seed: int
    epochs: int
    lr: float = VGG16.lr
    depth: int = 4
    width: int = 32

    @property
    def name(self) -> str:
        """All of it, as a file is called."""
        plain = self.method.replace(",", "").replace("+", "and").replace(" ", "-")
        network = f"{self.depth}x{self.width}"
        return f"{plain}_lr{self.lr:g}_{network}_seed{self.seed}_{self.epochs}epochs"


def training(case: Case) -> PipelineTraining:
    """Train on the real engine, over threads."""
    schedule = METHODS[case.method]
    stages = schedule(1).stages
    recipe = Recipe(
        model=_network(case),
        data=mnist(),
        optimizer=replace(VGG16, lr=case.lr).optimizer,
        batch_rows=VGG16.minibatch,
        epochs=case.epochs,
        seed=case.seed,
    )
    balance = _balance(recipe.model, stages)
    return train_pipeline(recipe, case.method, lambda s, m, n: schedule(n), stages, 1, balance)


def train_all(cases: Sequence[Case], folder: Path) -> pd.DataFrame:
    """Return the course of all trainings, measured; those that the folder has are not run again.

    Args:
        cases: what to train.
        folder: keeps a JSON file for each case that is done.

    Returns:
        A row for each case and epoch, from 0, the untrained network's: the columns of
        :class:`Case`, ``epoch``, ``accuracy`` (of the test images, %), ``loss`` (the mean of the
        epoch's minibatches; none before the first) and ``seconds`` that the epoch took.
    """
    records = saved_trainings.train_or_load(cases, _record, folder)
    return pd.DataFrame(
        [row for case, record in zip(cases, records, strict=True) for row in _rows(case, record)]
    )


def epochs_to(accuracies: Sequence[float], target: float) -> float:
    """Return after how many epochs a target is first reached, between two by a straight line.

    Args:
        accuracies: after 0, 1, 2, ... epochs.
        target: in the same unit.

    Returns:
        ``math.inf`` if it is not reached.
    """
    reached = np.flatnonzero(np.asarray(accuracies) >= target)
    if not len(reached):
        return math.inf
    after = int(reached[0])
    if after == 0:
        return 0.0
    below, above = accuracies[after - 1], accuracies[after]
    return after - 1 + (target - below) / (above - below)


def each_seed(frame: pd.DataFrame, target: float) -> pd.DataFrame:
    """Return a row for each training of :func:`train_all`: how it ended and when it got there.

    Args:
        frame: what :func:`train_all` returned.
        target: accuracy, %.

    Returns:
        The columns of :data:`SETTING`, ``seed``, ``epochs`` to the target (infinite if it was not
        reached), final ``accuracy`` (%) and final ``loss``.
    """
    rows = []
    for keys, run in frame.groupby([*SETTING, "seed"], sort=False):
        rows.append(
            {
                **dict(zip([*SETTING, "seed"], keys, strict=True)),
                "epochs": epochs_to(run["accuracy"].tolist(), target),
                "accuracy": run["accuracy"].iloc[-1],
                "loss": run["loss"].iloc[-1],
            }
        )
    return pd.DataFrame(rows)


def summary(frame: pd.DataFrame, target: float) -> pd.DataFrame:
    """Return means and standard deviations over the seeds, a row for each method and setting.

    ``epochs`` is infinite unless every seed reached the target; ``reached`` counts those that did.
    Arguments as for :func:`each_seed`.
    """
    groups = each_seed(frame, target).groupby(SETTING, sort=False)
    table = groups.agg(
        seeds=("seed", "count"),
        reached=("epochs", lambda epochs: int(np.isfinite(epochs).sum())),
        epochs=("epochs", "mean"),
        epochs_std=("epochs", _std),
        accuracy=("accuracy", "mean"),
        accuracy_std=("accuracy", _std),
        loss=("loss", _mean),
        loss_std=("loss", _std),
    )
    return table.reset_index().assign(label="measured")


def largest_lr(table: pd.DataFrame, methods: Sequence[str], least: float) -> float:
    """Return the largest learning rate at which all of some methods still learn.

    Args:
        table: what :func:`summary` returned, of one network.
        methods: those that must.
        least: mean final accuracy, %, that counts as learning.

    Raises:
        ValueError: there is no such rate.
    """
    rows = table[table["method"].isin(methods)]
    return float(max(rate for rate, of in rows.groupby("lr") if of["accuracy"].min() >= least))


def distance_in_std(a: pd.Series, b: pd.Series) -> float:
    """Return |mean(a) - mean(b)| in standard deviations, pooled from both samples."""
    pooled = math.sqrt((a.var() + b.var()) / 2)
    return float(abs(a.mean() - b.mean()) / pooled) if pooled else math.inf


def _mean(values: pd.Series) -> float:
    """Return the mean, not a number if any value is not."""
    return float(values.mean(skipna=False))


def _std(values: pd.Series) -> float:
    """Return the standard deviation, not a number if any value is not finite."""
    return float(values.std()) if np.isfinite(values).all() else math.nan


def _network(case: Case) -> nn.Sequential:
    torch.manual_seed(case.seed)
    model = image_mlp(case.width, case.depth)
    for layer in model:
        if isinstance(layer, nn.Linear):  # He initialisation: learns from the first epoch on
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
            nn.init.zeros_(layer.bias)
    return model


def _balance(model: nn.Sequential, stages: int) -> list[int]:
    """Return layers of each stage: every stage begins with a linear layer, the first all before."""
    linear = [number for number, layer in enumerate(model) if isinstance(layer, nn.Linear)]
    starts = [0, *(linear[round(s * len(linear) / stages)] for s in range(1, stages)), len(model)]
    return np.diff(starts).tolist()


def _record(case: Case) -> saved_trainings.Record:
    data = mnist()
    with torch.no_grad():
        untrained = accuracy(_network(case)(data.test_inputs), data.test_targets)
    done = training(case)
    losses = np.reshape(done.losses, (case.epochs, -1)).mean(axis=1)
    return {
        "case": asdict(case),
        "accuracies": [float(untrained), *done.accuracies],
        "losses": [float(loss) if np.isfinite(loss) else None for loss in losses],
        "epoch_s": done.epoch_s,
        "provenance": provenance("measured", case.seed, data=data.source),
    }


def _rows(case: Case, record: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    columns = [record["accuracies"], [math.nan, *record["losses"]], [0.0, *record["epoch_s"]]]
    for epoch, (share, loss, seconds) in enumerate(zip(*columns, strict=True)):
        own = {key: value for key, value in asdict(case).items() if key != "epochs"}
        numbers = {"accuracy": 100 * share, "loss": math.nan if loss is None else loss}
        yield own | {"epoch": epoch, **numbers, "seconds": seconds}
