"""Epochs to a target accuracy, and how trainings ended, over several seeds."""

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd

from experiments.study.trainings import reached

SETTING = ["method", "lr", "depth", "width"]
"""The columns that are equal for trainings which differ by their seed alone."""


def epochs_to(accuracies: Sequence[float], target: float) -> float:
    """Return after how many epochs a target is first reached; from 0, the untrained network's."""
    return reached(accuracies, target, range(len(accuracies)))


def each_seed(frame: pd.DataFrame, target: float) -> pd.DataFrame:
    """Return a row for each training: how it ended, and when it reached the target (%).

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
    """Return the largest rate at which all of some methods reach ``least`` % mean accuracy.

    If they do so at none, it is the smallest rate.
    """
    rates = table[table["method"].isin(methods)].groupby("lr")
    reached = (rate for rate, of in rates if of["accuracy"].min() >= least)
    return float(max(reached, default=table["lr"].min()))


def distance_in_std(a: pd.Series, b: pd.Series) -> float:
    """Return |mean(a) - mean(b)| in standard deviations, pooled from both samples."""
    pooled = math.sqrt((a.var() + b.var()) / 2)
    return float(abs(a.mean() - b.mean()) / pooled) if pooled else math.inf


def error_of_distance(distance: float, seeds: int) -> float:
    """Return by what part of itself a distance in standard deviations may be wrong.

    Half of its 95 % confidence interval: between the means of two samples of n it has a variance of
    2 / n + d^2 / 4n (Hedges and Olkin, Statistical Methods for Meta-Analysis, 1985, section 5).
    """
    return 1.96 * math.sqrt(2 / seeds + distance**2 / (4 * seeds)) / distance if distance else 0.0


def _mean(values: pd.Series) -> float:
    """Return the mean, not a number if any value is not."""
    return float(values.mean(skipna=False))


def _std(values: pd.Series) -> float:
    """Return the standard deviation, not a number if any value is not finite."""
    return float(values.std()) if np.isfinite(values).all() else math.nan
