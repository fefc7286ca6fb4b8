"""How closely 2BW follows vanilla (PipeDream-2BW, Figure 5 and section 5.1).

Frames have the courses of :func:`.pretraining.train`, of one network and learning rate.
"""

import math

import numpy as np
import pandas as pd

from experiments.pipedream_2bw.pretraining import TWO_BW, VANILLA
from experiments.pipedream_2bw.settings import AdamRecipe


def finals(frame: pd.DataFrame, method: str) -> pd.Series:
    """Return a method's last validation loss by seed, nats a byte."""
    own = frame[(frame["method"] == method) & (frame["step"] == frame["step"].max())]
    return own.set_index("seed")["validation"]


def distance(frame: pd.DataFrame, method: str) -> float:
    """Return |difference of mean final validation losses| in standard deviations of vanilla's."""
    ours, base = (finals(frame, name) for name in (method, VANILLA))
    spread = float(base.std())
    return float(abs(ours.mean() - base.mean())) / spread if spread else math.inf


def gaps(frame: pd.DataFrame) -> pd.DataFrame:
    """Return 2BW's training loss minus vanilla's, ``gap``: a row for each seed and step.

    Both see the same batches in the same order; 2BW's loss is that of the weights which it reads,
    one update older than vanilla's.
    """
    wide = frame.dropna(subset="loss").pivot_table(
        index=["seed", "step"], columns="method", values="loss", sort=False
    )
    return (wide[TWO_BW] - wide[VANILLA]).rename("gap").reset_index()


def early_and_late(frame: pd.DataFrame) -> tuple[float, float]:
    """Return the mean |gap| of the first tenth of the steps and of the last half, nats a byte."""
    found = gaps(frame)
    last, size = found["step"].max(), found["gap"].abs()
    early, late = found["step"] <= last / 10, found["step"] > last / 2
    return float(size[early].mean()), float(size[late].mean())


def movement(frame: pd.DataFrame, recipe: AdamRecipe) -> tuple[float, float]:
    """Return how far an update of one method moves the weights after warm-up, relatively.

    The median over training, and that of its last tenth over that of its first, both divided by the
    learning rate: its decay alone would make the movement fall.
    """
    moved = frame.dropna(subset="moved").set_index("step")["moved"]
    last = moved.index.max()
    start = recipe.warm_up * last
    tenth = (last - start) / 10
    moved = moved[moved.index > start]
    even = moved / [recipe.share_of_lr(int(step) - 1) for step in moved.index]  # update 1: step 0
    early, late = even[even.index <= start + tenth], even[even.index > last - tenth]
    return float(moved.median()), float(late.median() / early.median())


def matching_share(frame: pd.DataFrame) -> float:
    """Return after which share of its steps vanilla's mean validation loss is where 2BW's ends.

    Between two validations by a straight line; not a number if vanilla never gets there.
    """
    points = frame.dropna(subset="validation")
    means = points.groupby(["method", "step"])["validation"].mean()
    vanilla, goal = means[VANILLA], float(means[TWO_BW].iloc[-1])
    if goal < vanilla.min():
        return math.nan
    best = np.minimum.accumulate(vanilla.to_numpy())
    steps = vanilla.index.to_numpy()
    return float(np.interp(-goal, -best, steps) / steps[-1])
