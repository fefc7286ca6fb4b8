"""Time to accuracy: epochs needed times hours an epoch (PipeDream, 2.1 and Figures 10 to 12).

A proxy, since nobody here trains on ImageNet: the epochs are measured in a small network's training
(:mod:`.trainings`), the hours simulated for the paper's networks and clusters.  Both factors are
kept apart wherever they are shown.
"""

import functools
import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import pandas as pd

from experiments.pipedream.convergence.statistics import epochs_to
from experiments.pipedream.convergence.trainings import ASP, ASP_LATER, METHODS
from experiments.pipedream.settings import DATA
from experiments.pipedream.table1.best_cut import best_cut
from experiments.pipedream.table1.calibration import calibrated, profile_of
from experiments.pipedream.table1.rows import Setting
from experiments.pipedream.table1.speeds import compute_seconds, simulated_seconds
from experiments.study.trainings import reached
from pipekit.clusters import Cluster
from pipekit.profiling import Profile


class Arm(NamedTuple):
    """A curve of a figure: its setting's hours are simulated, its method's epochs are measured."""

    name: str
    setting: Setting
    method: str


def _arms(model: str, workers: int, cluster: str, config: str) -> tuple[Arm, Arm]:
    """Return PipeDream's curve and BSP's; all on one stage, they are one method."""
    setting, bsp = Setting(model, workers, cluster), f"BSP, {workers} workers"
    ours = f"PipeDream {config}"
    return Arm(ours, setting, ours if ours in METHODS else bsp), Arm(bsp, setting, bsp)


FIGURES: Mapping[str, tuple[Arm, ...]] = MappingProxyType(
    {
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
)
"""The curves of each figure, PipeDream's before its BSP's."""


def epoch_hours(arm: Arm) -> float:
    """Return the simulated hours of an epoch of ImageNet.

    The bandwidth is that of Table 1's calibration; the stages' cut is the planner's best for the
    configuration as printed.  ASP is taken at the paper's word, that it "has no communication
    overhead" (section 5.2), which is the best that can be said for it.
    """
    costs, cluster = machines(arm.setting)
    if arm.method in (ASP, ASP_LATER):
        seconds = compute_seconds(costs) / arm.setting.workers
    else:
        workers = METHODS[arm.method].stage_workers
        plan = best_cut(costs, cluster, [len(each) for each in workers])
        seconds = simulated_seconds(costs, plan, cluster)
    return DATA["ILSVRC12"].train / costs.rows * seconds / 3600


@functools.cache
@functools.cache
def machines(setting: Setting) -> tuple[Profile, Cluster]:
    """Return a minibatch's costs on one worker, and the cluster with Table 1's calibration."""
    return profile_of(setting._replace(workers=1)), calibrated(setting)


def factors(summary: pd.DataFrame, figures: Mapping[str, Sequence[Arm]] = FIGURES) -> pd.DataFrame:
    """Return both factors of each curve's time to accuracy, and the product, a row a curve.

    Columns: figure, curve, network, cluster, ``epochs`` (of :func:`.statistics.summary`, measured;
    infinite where a seed did not reach the target), ``hours an epoch`` (simulated), ``hours``.
    """
    epochs = summary.set_index("method")["epochs"]
    table = pd.DataFrame(
        {
            "figure": figure,
            "curve": arm.name,
            "network": arm.setting.model,
            "cluster": f"{arm.setting.workers}{arm.setting.cluster}",
            "epochs": epochs[arm.method],
            "hours an epoch": epoch_hours(arm),
        }
        for figure, arms in figures.items()
        for arm in arms
    )
    hours = table["epochs"] * table["hours an epoch"]
    return table.assign(hours=hours, label="measured x simulated")


class Ratio(NamedTuple):
    """How many times less one curve of a figure takes than another.

    ``epochs`` (measured) is the statistical efficiency, ``seconds`` an epoch (simulated) the
    hardware efficiency; if the other never got there, ``epochs`` is a ``bound``, the least that it
    can be.
    """

    epochs: float
    seconds: float
    bound: bool

    @property
    def time(self) -> float:
        """In time to accuracy, the product."""
        return self.epochs * self.seconds

    def __str__(self) -> str:
        least = "at least " if self.bound else ""
        return (
            f"{least}{self.time:.2f}x = {least}{self.epochs:.2f}x in epochs (measured) times "
            f"{self.seconds:.2f}x in seconds an epoch (simulated)"
        )


def ratio(table: pd.DataFrame, figure: str, fast: str, slow: str, trained: int) -> Ratio:
    """Return how many times less ``fast`` takes than ``slow``, which may need more than trained."""
    rows = table[table["figure"] == figure].set_index("curve")
    epochs, hours = rows["epochs"], rows["hours an epoch"]
    bound = math.isinf(epochs[slow])
    taken = trained if bound else epochs[slow]
    return Ratio(float(taken / epochs[fast]), float(hours[slow] / hours[fast]), bound)


def curves(frame: pd.DataFrame, arms: Sequence[Arm]) -> pd.DataFrame:
    """Return accuracy against hours: a row for each curve, seed and epoch of a course."""
    parts = []
    for arm in arms:
        own = frame[frame["method"] == arm.method]
        hours = own["epoch"] * epoch_hours(arm)
        parts.append(own[["seed", "epoch", "accuracy"]].assign(curve=arm.name, hours=hours))
    return pd.concat(parts, ignore_index=True)


def is_product(frame: pd.DataFrame, arm: Arm, target: float) -> bool:
    """Return whether each seed's curve crosses the target at its epochs times the hours of one.

    The crossing is read off the curve over hours, as one would off the paper's figure; the epochs
    are counted without a clock (section 2.1).
    """
    return all(
        math.isclose(
            reached(run["accuracy"].tolist(), target, run["hours"].tolist()),
            epochs_to(run["accuracy"].tolist(), target) * epoch_hours(arm),
            rel_tol=1e-9,
        )
        for _, run in curves(frame, [arm]).groupby("seed")
    )
