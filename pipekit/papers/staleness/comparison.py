"""What the sweep's trainings say of each method, beside training without delay.

Every number here is computed from the table of trainings alone (:func:`.sweep.frame`).  Two methods
with one seed have the same first weights and the same batches in the same order, so that
differences are taken seed by seed.
"""

import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
from scipy import stats

from pipekit.papers.staleness.methods import SYNC
from pipekit.papers.staleness.sweep import ARM, FINAL, FIRST_TUNING_SEED, VALIDATIONS, chosen

OWN, SYNCS = "own rate", "flush's rate"
SETTING = ["proxy", "optimizer"]
LEVEL = 0.05
"""Below this p of a paired t-test over the seeds a difference is told from none."""


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
    and judged on as many seeds as any.
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
    return found[counts == counts.max()].reset_index(drop=True)


def summary(trainings: pd.DataFrame) -> pd.DataFrame:
    """Return how each arm ended: a row for each, at its own rate and at that of no delay.

    Columns: proxy, optimizer, arm, method, stages, at, rate, seeds, ``loss`` (mean final validation
    loss, nats) and its ``std`` over seeds, ``cost`` (its mean excess over no delay at that one's
    own rate, nats), ``error`` (the standard error of that) and ``p`` (paired t-test over seeds);
    infinite where a seed did not end with a finite loss.
    """
    rows = judged(trainings)
    base = rows[(rows["method"] == SYNC) & (rows["at"] == OWN)]
    base = base.set_index([*SETTING, "seed"])[FINAL]
    found = []
    for (*key, at, arm), own in rows.groupby([*ARM, "at", "arm"], sort=False):
        proxy, method, stages, optimizer = key
        final = own.set_index("seed")[FINAL].fillna(math.inf)
        excess = final - base.get((proxy, optimizer), pd.Series(dtype=float)).reindex(final.index)
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
                "loss": final.mean(),
                "std": _spread(final),
                "cost": excess.mean(),
                "error": _spread(excess) / math.sqrt(len(excess)),
                "p": _p(excess),
            }
        )
    return pd.DataFrame(found).assign(label="measured")


def against(trainings: pd.DataFrame, method: str, other: str) -> pd.DataFrame:
    """Return a method's excess over another one at equal depth, each at its own rate.

    A row for each proxy, optimizer and depth that has both: ``excess`` (nats, mean over seeds),
    ``error``, ``p``.
    """
    rows = judged(trainings)
    rows = rows[rows["at"] == OWN]
    found = []
    for (proxy, optimizer, stages), own in rows.groupby([*SETTING, "stages"], sort=False):
        both = own.pivot_table(index="seed", columns="method", values=FINAL, dropna=False)
        if {method, other} <= {*both}:
            excess = both[method].fillna(math.inf) - both[other]
            error = _spread(excess) / math.sqrt(len(excess))
            own_row = {"proxy": proxy, "optimizer": optimizer, "stages": stages}
            found.append(own_row | {"excess": excess.mean(), "error": error, "p": _p(excess)})
    columns = [*SETTING, "stages", "excess", "error", "p"]
    return pd.DataFrame(found, columns=columns).assign(label="measured")


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


def recovered(table: pd.DataFrame) -> pd.DataFrame:
    """Return which share of a delay's cost each method saves, at own rates.

    Of PipeDream's cost at the same depth; of 2BW's for those that are built on it.  Rows of
    :func:`summary` with ``of`` and ``saved`` (1: as good as no delay; below 0: worse than without).
    """
    own = table[(table["at"] == OWN) & (table["method"] != SYNC)]
    costs = own.set_index([*SETTING, "method", "stages"])["cost"]

    def basis(method: str) -> str:
        return "2bw" if method.startswith("2bw") else "pipedream"

    found = []
    for row in own.itertuples():
        of = basis(row.method)
        cost = costs.get((row.proxy, row.optimizer, of, row.stages), math.nan)
        if of != row.method and cost > 0:
            found.append((row.Index, of, 1 - row.cost / cost))
    chosen_rows = own.loc[[index for index, *_ in found]]
    return chosen_rows.assign(of=[of for _, of, _ in found], saved=[s for *_, s in found])


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
    """Yield the pairs of proxy and optimizer that have judged trainings with and without delay."""
    rows = judged(trainings)
    for (proxy, optimizer), own in rows.groupby(SETTING, sort=False):
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


def _spread(losses: pd.Series) -> float:
    """Return the standard deviation; infinite where one is."""
    return math.inf if np.isinf(losses).any() else float(losses.std())


def _p(excess: pd.Series) -> float:
    """Return p of a t-test that the mean is 0; 0 where a training diverged, 1 where all are 0."""
    if excess.isna().any():
        return math.nan
    if np.isinf(excess).any():
        return 0.0
    if len(excess) < 2 or not excess.any():
        return 1.0
    return float(stats.ttest_1samp(excess, 0.0).pvalue)
