"""What the sweep's trainings say of each method, beside training without delay.

Every number here is computed from the table of trainings alone (:func:`.sweep.frame`).  Two methods
with one seed have the same first weights and the same batches in the same order, so that
differences are taken seed by seed.  A training that did not end with a finite loss counts as one
that has learnt nothing: with the loss of its untrained network.
"""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from experiments.staleness.methods import METHODS, SYNC
from experiments.staleness.paired import Excess, compare
from experiments.staleness.sweep import ARM, FINAL, FIRST_TUNING_SEED, VALIDATIONS, chosen

OWN, SYNCS = "own rate", "flush's rate"
SETTING = ["proxy", "optimizer"]
UNTRAINED = VALIDATIONS[0]
ENOUGH_SEEDS = 5
"""Of a complete arm; where no arm has as many, as many as any has."""


def load(file: Path) -> pd.DataFrame:
    """Return the trainings that a file has, each once."""
    return pd.read_csv(file).drop_duplicates([*ARM, "rate", "seed", "updates"])


def arm_name(method: str, stages: int) -> str:
    """Return how an arm is called in figures: its delay depends on the depth, or not."""
    return method if method == SYNC or method.startswith("2bw") else f"{method}, {stages} stages"


def judged(trainings: pd.DataFrame) -> pd.DataFrame:
    """Return the judging seeds' trainings at each arm's own rate and at that of no delay.

    Columns as in :func:`.sweep.frame`, and ``at`` (:data:`OWN` or :data:`SYNCS`: a training may be
    both) and ``arm``.  Only complete arms: tuned, not at the border of the rates that were tried,
    and judged on enough seeds (:data:`ENOUGH_SEEDS`).
    """
    rates = chosen(trainings)
    parts = []
    for key, own in trainings.groupby(ARM, sort=False):
        proxy, method, stages, optimizer = key
        at_border = rates[key] in _border(own)
        sync = rates.get((proxy, SYNC, 1, optimizer), math.nan)
        seeds = own[own["seed"] < FIRST_TUNING_SEED]
        for at, rate in ((OWN, rates[key]), (SYNCS, sync)):
            if not (at == OWN and at_border):
                rows = seeds[seeds["rate"] == rate]
                parts.append(rows.assign(at=at, arm=arm_name(method, stages)))
    found = pd.concat(parts, ignore_index=True)
    counts = found.groupby([*ARM, "at"])["seed"].transform("nunique")
    return found[counts >= min(ENOUGH_SEEDS, counts.max())].reset_index(drop=True)


def summary(trainings: pd.DataFrame) -> pd.DataFrame:
    """Return how each arm ended: a row for each, at its own rate and at that of no delay.

    Columns: proxy, optimizer, arm, method, stages, at, rate, seeds, ``diverged`` (how many of
    them), ``loss`` (mean final validation loss, nats) and its ``std`` over seeds, ``cost`` (its
    mean excess over no delay at that one's own rate, nats) with the interval ``low`` to ``high``,
    ``p`` (paired t-test, this comparison alone) and ``effect`` (the cost over no delay's own
    standard deviation over seeds).
    """
    rows = judged(trainings)
    base = rows[(rows["method"] == SYNC) & (rows["at"] == OWN)]
    bases = {setting: ends(own) for setting, own in base.groupby(SETTING)}
    found = []
    for (*key, at, arm), own in rows.groupby([*ARM, "at", "arm"], sort=False):
        proxy, method, stages, optimizer = key
        final = ends(own)
        sync = bases.get((proxy, optimizer), pd.Series(dtype=float))
        excess = compare((final - sync).dropna())
        found.append(
            {
                "proxy": proxy,
                "optimizer": optimizer,
                "arm": arm,
                "method": method,
                "stages": stages,
                "at": at,
                "rate": own["rate"].iloc[0],
                "seeds": len(final),
                "diverged": int(own[FINAL].isna().sum()),
                "loss": final.mean(),
                "std": final.std(),
                "cost": excess.mean,
                "low": excess.low,
                "high": excess.high,
                "p": excess.p,
                "effect": excess.mean / sync.std(),
            }
        )
    return pd.DataFrame(found).assign(label="measured")


def ends(rows: pd.DataFrame) -> pd.Series:
    """Return the final validation loss of one arm's trainings by seed, in nats."""
    return rows[FINAL].fillna(rows[UNTRAINED]).set_axis(rows["seed"])


class Pair(NamedTuple):
    """A method beside another one, which is at its own rate.

    Attributes:
        proxy: on what.
        optimizer: of the method.
        stages: of the method's pipeline.
        found: its excess over the other, over the seeds that both have.
        spread: the other's standard deviation over seeds, nats.
    """

    proxy: str
    optimizer: str
    stages: int
    found: Excess
    spread: float


def against(
    trainings: pd.DataFrame,
    method: str,
    other: str,
    other_optimizer: str | None = None,
    at: str = OWN,
) -> list[Pair]:
    """Return a method's excess over another one in each setting that has both.

    Their depths are equal, or the other's delay does not depend on it.

    Args:
        trainings: of the sweep.
        method: whose excess.
        other: over which, at its own rate.
        other_optimizer: with which the other was trained; by default the same.
        at: :data:`OWN`: the method is at its own rate, too.  :data:`SYNCS`: at that of no delay,
            only where its own is another, or is not found yet.
    """
    rows = judged(trainings)
    arms: dict[tuple[str, str, int, str, str], pd.DataFrame] = dict(
        iter(rows.groupby([*ARM, "at"], sort=False))
    )
    pairs = []
    for (proxy, name, stages, optimizer, rates), own in arms.items():
        if (name, rates) != (method, at):
            continue
        tuned = arms.get((proxy, name, stages, optimizer, OWN))  # None: not found yet
        at_its_own = tuned is not None and own["rate"].iloc[0] == tuned["rate"].iloc[0]
        depth = METHODS[other].depth(stages)
        theirs = arms.get((proxy, other, depth, other_optimizer or optimizer, OWN))
        if theirs is not None and (at == OWN or not at_its_own):
            base = ends(theirs)
            found = compare((ends(own) - base).dropna())
            pairs.append(Pair(proxy, optimizer, stages, found, float(base.std())))
    return pairs


def by_rate(trainings: pd.DataFrame, method: str) -> pd.DataFrame:
    """Return a method's excess over no delay at equal rates, on the tuning seeds.

    A row for each proxy, optimizer, depth and rate that both tried: ``excess`` (nats, mean over
    seeds; infinite where only the method diverged), ``loss`` (without delay) and whether the rate
    is ``best`` without delay.
    """
    tuning = trainings[trainings["seed"] >= FIRST_TUNING_SEED]
    rates = chosen(trainings)
    key = [*SETTING, "rate", "seed"]
    base = tuning[tuning["method"] == SYNC].set_index(key)[FINAL].rename("loss")
    own = tuning[tuning["method"] == method].join(base, on=key, how="inner")
    own = own.assign(excess=own[FINAL].fillna(math.inf) - own["loss"])
    means = own.groupby([*SETTING, "stages", "rate"])[["excess", "loss"]].mean().reset_index()
    best = [
        rates[proxy, SYNC, 1, optimizer] == rate
        for proxy, optimizer, rate in means[[*SETTING, "rate"]].itertuples(index=False)
    ]
    return means.assign(best=best, label="measured")


def plain(method: str) -> str:
    """Return the method that a mitigation was added to, itself if it has none."""
    equation = METHODS[method].equation
    return next(name for name, each in METHODS.items() if each.equation == equation)


def courses(trainings: pd.DataFrame, at: str = OWN) -> pd.DataFrame:
    """Return the validation loss in the course of the judged trainings: a row a point and seed.

    Columns: proxy, optimizer, arm, method, stages, seed, ``updates``, ``samples``, ``loss``.
    """
    rows = judged(trainings)
    rows = rows[rows["at"] == at]
    ids = [*SETTING, "arm", "method", "stages", "seed", "batch_rows", "updates"]
    long = rows.melt(ids, VALIDATIONS, "point", "loss")
    part = long["point"].str.removeprefix("validation_").astype(int) / (len(VALIDATIONS) - 1)
    updates = (long["updates"] * part).round().astype(int)
    long = long.assign(updates=updates, samples=updates * long["batch_rows"])
    return long.drop(columns=["point", "batch_rows"])


def reached(course: pd.DataFrame, target: float) -> pd.Series:
    """Return after how many updates the mean loss of each arm of one setting is at a target.

    Between two validations by a straight line; infinite if it never is.
    """
    means = course.groupby(["arm", "updates"], sort=False)["loss"].mean()
    return pd.Series(
        {
            arm: _first_at(own.droplevel("arm"), target)
            for arm, own in means.groupby("arm", sort=False)
        },
        name="updates",
    )


def settings(trainings: pd.DataFrame) -> Iterator[tuple[str, str]]:
    """Yield the pairs of proxy and optimizer with judged methods with and without delay.

    Each is at its own rate: what is judged at that of no delay alone has none yet.
    """
    rows = judged(trainings)
    for (proxy, optimizer), own in rows[rows["at"] == OWN].groupby(SETTING, sort=False):
        if SYNC in set(own["method"]) and own["method"].nunique() > 1:
            yield proxy, optimizer


def _first_at(losses: pd.Series, target: float) -> float:
    best = np.minimum.accumulate(losses.fillna(math.inf).to_numpy())
    updates = losses.index.to_numpy(dtype=float)
    if best[-1] > target:
        return math.inf
    after = int(np.argmax(best <= target))
    if after == 0:
        return float(updates[0])
    high, low = best[after - 1], best[after]
    share = (high - target) / (high - low) if math.isfinite(high) else 1.0
    return float(updates[after - 1] + share * (updates[after] - updates[after - 1]))


def _border(trainings: pd.DataFrame) -> tuple[float, float]:
    rates = trainings.loc[trainings["seed"] >= FIRST_TUNING_SEED, "rate"]
    return rates.min(), rates.max()
