"""Statistical efficiency: how many epochs to a target accuracy (PipeDream, sections 2.1 and 3.4).

Real trainings of a small network on real images, one for each method and seed.  Learning rate,
momentum and rows a machine are those that the paper gives VGG16 (section 5.1), for every method.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import nn

from experiments.pipedream.settings import TRAININGS
from experiments.recorded import saved_trainings
from experiments.study.training import PipelineTraining, Recipe, train_pipeline
from pipekit.datasets import mnist
from pipekit.host.provenance import provenance
from pipekit.metrics import accuracy
from pipekit.models.small import image_mlp
from pipekit.schedules import Schedule, asp, pipedream

VGG16 = TRAININGS["vgg16"]

SGD = "SGD, 1 worker"
STASHING = "PipeDream 1-1-1-1"
VERTICAL_SYNC = "PipeDream 1-1-1-1 + vertical sync"
NAIVE = "naive 1-1-1-1, no stashing"
BSP = "BSP, 4 workers"
ASP, ASP_LATER = "ASP, 4 workers, delay 3", "ASP, 4 workers, delay 7"

METHODS: Mapping[str, Schedule] = MappingProxyType(
    {
        SGD: pipedream(1),
        STASHING: pipedream(4),
        VERTICAL_SYNC: pipedream(4, vertical_sync=True),
        NAIVE: pipedream(4, stashing=False),
        "PipeDream 2-1-1": pipedream([2, 1, 1]),
        BSP: pipedream([4]),
        ASP: asp(4),
        ASP_LATER: asp(4, delay=7),
        "PipeDream 7-1": pipedream([7, 1]),
        "BSP, 8 workers": pipedream([8]),
        "PipeDream 9-5-1-1": pipedream([9, 5, 1, 1]),
        "BSP, 16 workers": pipedream([16]),
    }
)
"""By name.  ASP's delays are the shortest that there is, without a network, and that of gradients
which travel for as long as a minibatch takes."""


@dataclass(frozen=True)
class DigitsTraining:
    """All that a training depends on: a method, a seed, passes over 4,000 training images.

    The network has ``depth`` linear layers of ``width`` features, cut into stages of equally many;
    the pipeline drains after each epoch.
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


def every_method(seeds: int, epochs: int, width: int) -> list[DigitsTraining]:
    """Return the trainings of all methods at the paper's learning rate, several seeds each."""
    return [
        DigitsTraining(name, seed, epochs, width=width) for name in METHODS for seed in range(seeds)
    ]


def training(config: DigitsTraining) -> PipelineTraining:
    """Train on the real engine, over threads."""
    schedule = METHODS[config.method]
    recipe = Recipe(
        model=_network(config),
        data=mnist(),
        optimizer=replace(VGG16, lr=config.lr).optimizer,
        batch_rows=VGG16.minibatch,
        epochs=config.epochs,
        seed=config.seed,
    )
    balance = _balance(recipe.model, schedule.stages)
    return train_pipeline(recipe, config.method, schedule, balance)


def train_all(configs: Sequence[DigitsTraining], folder: Path) -> pd.DataFrame:
    """Return the course of all trainings, measured; those that the folder has are not run again.

    A row for each training and epoch, from 0, the untrained network's: the columns of
    :class:`DigitsTraining`, ``epoch``, ``accuracy`` (of the test images, %), ``loss`` (the mean of
    the epoch's minibatches; none before the first) and ``seconds`` that it took.
    """
    records = saved_trainings.train_or_load(configs, _record, folder)
    return pd.DataFrame(
        [
            row
            for config, record in zip(configs, records, strict=True)
            for row in _rows(config, record)
        ]
    )


def _network(config: DigitsTraining) -> nn.Sequential:
    torch.manual_seed(config.seed)
    model = image_mlp(config.width, config.depth)
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


def _record(config: DigitsTraining) -> saved_trainings.Record:
    data = mnist()
    with torch.no_grad():
        untrained = accuracy(_network(config)(data.test_inputs), data.test_targets)
    done = training(config)
    losses = np.reshape(done.losses, (config.epochs, -1)).mean(axis=1)
    return {
        "case": asdict(config),
        "accuracies": [float(untrained), *done.accuracies],
        "losses": [float(loss) if np.isfinite(loss) else None for loss in losses],
        "epoch_s": done.epoch_s,
        "provenance": provenance("measured", config.seed, data=data.source),
    }


def _rows(config: DigitsTraining, record: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    columns = [record["accuracies"], [math.nan, *record["losses"]], [0.0, *record["epoch_s"]]]
    for epoch, (share, loss, seconds) in enumerate(zip(*columns, strict=True)):
        own = {key: value for key, value in asdict(config).items() if key != "epochs"}
        numbers = {"accuracy": 100 * share, "loss": math.nan if loss is None else loss}
        yield own | {"epoch": epoch, **numbers, "seconds": seconds}
