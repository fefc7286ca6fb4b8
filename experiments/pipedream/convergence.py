"""Epochs to an accuracy and hours an epoch, PipeDream's time to accuracy (2.1, Figures 10 to 12).

A proxy: epochs are measured on a small network, hours simulated for the paper's.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
from torch import nn

from experiments.pipedream import IMAGES, LR, ROWS, Change
from experiments.pipedream.table1.plans import Setting, data_parallel
from experiments.pipedream.table1.rows import BSP as ONE_STAGE
from experiments.pipedream.table1.rows import PIPEDREAM, Row
from experiments.study.costs import faster_links
from experiments.study.traces import mean_interval
from experiments.study.training import Recipe, Training, he_initialised, train_pipeline
from experiments.study.trainings import Course
from pipekit.datasets import Dataset, mnist
from pipekit.host.provenance import provenance
from pipekit.models.small import image_mlp
from pipekit.schedules import Schedule, asp, pipedream
from pipekit.simulation import simulate
from pipekit.workloads import accuracy

SGD = "SGD, 1 worker"
STASHING = "PipeDream 1-1-1-1"
VERTICAL_SYNC = "PipeDream 1-1-1-1 + vertical sync"
NAIVE = "naive 1-1-1-1, no stashing"
HYBRID = "PipeDream 2-1-1"
BSP = "BSP, 4 workers"
ASP, ASP_LATER = "ASP, 4 workers, delay 3", "ASP, 4 workers, delay 7"

METHODS: Mapping[str, Schedule] = {
    SGD: pipedream(1),
    STASHING: pipedream(4),
    VERTICAL_SYNC: pipedream(4, vertical_sync=True),
    NAIVE: pipedream(4, stashing=False),
    HYBRID: pipedream([2, 1, 1]),
    BSP: pipedream([4]),
    ASP: asp(4),
    ASP_LATER: asp(4, delay=7),
    "PipeDream 7-1": pipedream([7, 1]),
    "BSP, 8 workers": pipedream([8]),
    "PipeDream 9-5-1-1": pipedream([9, 5, 1, 1]),
    "BSP, 16 workers": pipedream([16]),
}
"""By name.  ASP's delays are the shortest that there is, without a network, and that of gradients
which travel for as long as a minibatch takes."""


FIRST_TUNING_SEED = 100
"""From it on a training holds out an eighth of its images, on which its accuracy is."""


@dataclass(frozen=True)
class Digits:
    """A training: a method, a seed, passes over 4,000 images of digits, drained after each.

    The network has ``depth`` linear layers of ``width`` features, equally many a stage.
    """

    method: str
    seed: int
    epochs: int
    lr: float = LR
    depth: int = 4
    width: int = 32

    @property
    def data(self) -> Dataset:
        data = mnist()
        if self.seed < FIRST_TUNING_SEED:
            return data
        own = len(data.train_inputs) * 7 // 8
        return replace(
            data,
            train_inputs=data.train_inputs[:own],
            train_targets=data.train_targets[:own],
            test_inputs=data.train_inputs[own:],
            test_targets=data.train_targets[own:],
        )


def training(digits: Digits) -> Training:
    schedule, model = METHODS[digits.method], _network(digits)
    optimizer = partial(torch.optim.SGD, lr=digits.lr, momentum=0.9)
    recipe = Recipe(model, digits.data, optimizer, ROWS["vgg16"], digits.epochs, digits.seed)
    # Every stage begins with a linear layer, but for the first, which has all before it, too.
    linear = [number for number, layer in enumerate(model) if isinstance(layer, nn.Linear)]
    inner = [linear[round(s * len(linear) / schedule.stages)] for s in range(1, schedule.stages)]
    balance = np.diff([0, *inner, len(model)]).tolist()
    return train_pipeline(recipe, digits.method, schedule, balance)


def train(digits: Digits) -> Course:
    """Return a training's course by epoch, from 0, the untrained network's; accuracy in percent."""
    data, done = digits.data, training(digits)
    with torch.no_grad():
        untrained = float(accuracy(_network(digits)(data.test_inputs), data.test_targets))
    return Course.of(
        provenance("measured", digits.seed, data=data.source),
        epoch=range(digits.epochs + 1),
        accuracy=[100 * share for share in (untrained, *done.accuracies)],
        loss=[None, *np.reshape(done.losses, (digits.epochs, -1)).mean(axis=1)],
    )


def _network(digits: Digits) -> nn.Sequential:
    torch.manual_seed(digits.seed)
    return he_initialised(image_mlp(digits.width, digits.depth))


def distance_in_std(a: pd.Series, b: pd.Series) -> float:
    """Return |mean(a) - mean(b)| in standard deviations, pooled from both samples."""
    pooled = math.sqrt((a.var() + b.var()) / 2)
    return float(abs(a.mean() - b.mean()) / pooled) if pooled else math.inf


def error_of_distance(distance: float, seeds: int) -> float:
    """Return by what part of itself a distance in standard deviations may be wrong.

    Half of its 95 % confidence interval; the variance is 2 / n + d^2 / 4n (Hedges and Olkin,
    Statistical Methods for Meta-Analysis, 1985, section 5).
    """
    return 1.96 * math.sqrt(2 / seeds + distance**2 / (4 * seeds)) / distance if distance else 0.0


class Arm(NamedTuple):
    """A curve of a figure: its setting's hours are simulated, its method's epochs are measured."""

    name: str
    setting: Setting
    method: str


def _arms(model: str, workers: int, cluster: str, config: str) -> tuple[Arm, Arm]:
    setting, bsp = Setting(model, workers, cluster), f"BSP, {workers} workers"
    ours = f"PipeDream {config}"
    return Arm(ours, setting, ours if ours in METHODS else bsp), Arm(bsp, setting, bsp)


FIGURES: Mapping[str, tuple[Arm, ...]] = {
    "10a": _arms("vgg16", 8, "A", "7-1"),
    "10b": _arms("inception-v3", 8, "A", "8"),
    "11a": _arms("vgg16", 8, "B", "7-1"),
    "11b": _arms("inception-v3", 8, "B", "7-1"),
    "12": (
        *_arms("vgg16", 4, "A", "2-1-1"),
        *_arms("vgg16", 16, "A", "9-5-1-1"),
        *(Arm(method, Setting("vgg16", 4, "A"), method) for method in (ASP, ASP_LATER)),
    ),
}
"""The curves of each figure, PipeDream's before its BSP's."""


def epoch_hours(arm: Arm, change: Change | None = None) -> float:
    """Return the simulated hours of an epoch of ImageNet, by Table 1's row or one changed so."""
    row = Row.of(arm.setting).changed(change)
    if arm.method in (ASP, ASP_LATER):  # which "has no communication overhead" (section 5.2)
        seconds = row.compute_s / arm.setting.workers
    else:
        seconds = row.seconds(ONE_STAGE if METHODS[arm.method].stages == 1 else PIPEDREAM)
    return IMAGES / row.profile.rows * seconds / 3600


def asp_idle(setting: Setting, delay: int, change: Change | None = None) -> float:
    """Return ASP's idle share of its workers' time (simulated), once its pipeline is full.

    Our ASP has no parameter server: it sends every gradient to every worker, so that links are made
    as many times faster.  ``change`` is made to Table 1's row.
    """
    row, workers = Row.of(setting).changed(change), setting.workers
    drain, timed = delay + 1, 16  # minibatches: as many are in flight as drain
    fill = 2 * drain
    table = asp(workers, delay).take(fill + timed + drain)
    plan, links = data_parallel(row.profile, workers), faster_links(row.cluster, workers)
    ends = simulate(table, row.profile, plan, links).ends("BACKWARD", stage=0)
    seconds = mean_interval(ends, fill - 1, fill - 1 + timed)
    return 1 - row.compute_s / workers / seconds


class Ratio(NamedTuple):
    """How many times less one curve takes than another: in epochs (measured) and seconds of one."""

    epochs: float
    seconds: float
    bound: bool  # whether the other never got there: the least that ``epochs`` can be
    times: tuple[float, ...]  # in time, of each training with its like

    @property
    def time(self) -> float:
        return self.epochs * self.seconds

    def __str__(self) -> str:
        least, epochs = "at least " * self.bound, f"{self.epochs:.2f}x in epochs (measured)"
        each = f"{epochs} times {self.seconds:.2f}x in seconds an epoch (simulated)"
        return f"{least}{self.time:.2f}x = {least}{each}"


def ratio(
    epochs: Mapping[str, Sequence[float]],
    fast: Arm,
    slow: Arm,
    trained: int,
    change: Change | None = None,
) -> Ratio:
    """Return how many times less ``fast`` takes, by the epochs that each seed's training needs."""
    own, other = (np.asarray(epochs[arm.method], dtype=float) for arm in (fast, slow))
    bound = bool(np.isinf(other).any())
    needed = np.full_like(other, trained) if bound else other
    seconds = epoch_hours(slow, change) / epoch_hours(fast, change)
    times = tuple((needed / own * seconds).tolist())
    return Ratio(float(needed.mean() / own.mean()), seconds, bound, times)
