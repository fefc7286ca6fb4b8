"""What the sweep's trainings say of each method, beside training without delay.

Two methods with one seed have the same first weights and batches, so that differences are taken
seed by seed.  A training that did not end with a finite loss counts as one that has learnt nothing:
with the loss of its untrained network.
"""

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from scipy import stats

from experiments.staleness.methods import BSP, METHODS, SYNC
from experiments.staleness.sweep import ARM, FINAL, FIRST_TUNING_SEED, VALIDATIONS, chosen
from pipekit import plots

OWN, SYNCS = "own rate", "flush's rate"
SETTING = ["proxy", "optimizer"]
UNTRAINED = VALIDATIONS[0]
ENOUGH_SEEDS = 5  # of a complete arm; where no arm has as many, as many as any has
LEVEL = 0.05
"""The chance, over all comparisons of a table, that any is told where there is nothing to tell."""
COVERAGE = 0.95  # of an interval, taken alone
PAD = 0.05  # of a course's axis, beyond what is compared
MOST = 0.75  # of a course's later points, which are in the picture


def excess(ours: "pd.Series[float]", theirs: "pd.Series[float]") -> dict[str, float]:
    """Return by how much losses are above others, by seed: the mean of the differences, in nats.

    Beside the ``excess`` stand the seeds that both have and its interval, ``low`` to ``high``; the
    ``margin``, the standard deviation of the others; and of paired t-tests ``p`` that there is no
    difference, and ``above`` and ``below`` that there is none beyond the margin.
    """
    differences = (ours - theirs).dropna()
    seeds, mean, margin = len(differences), float(differences.mean()), float(theirs.std())
    error = differences.std() / np.sqrt(seeds)  # NaN of one seed, which says nothing of others
    half = np.nan_to_num(error * stats.t.ppf((1 + COVERAGE) / 2, seeds - 1), nan=math.inf)

    def p(distance: float) -> float:
        """Return p of a one-sided test, if the mean is so far within what it is to rule out."""
        with np.errstate(divide="ignore", invalid="ignore"):
            return float(np.nan_to_num(stats.t.cdf(distance / error, seeds - 1), nan=1.0))

    return {
        **{"seeds": seeds, "excess": mean, "low": mean - half, "high": mean + half},
        **{"margin": margin, "p": min(1.0, 2 * min(p(mean), p(-mean)))},
        **{"above": p(mean - margin), "below": p(-mean - margin)},
    }


def holm(p: "pd.Series[float]") -> "pd.Series[float]":
    """Return p-values corrected for their number by Holm's method (1979)."""
    ordered = p.sort_values(kind="stable")
    left = pd.Series(range(len(p), 0, -1), index=ordered.index, dtype=float)
    return (ordered * left).cummax().clip(upper=1.0).reindex(p.index)


def load(file: Path) -> pd.DataFrame:
    return pd.read_csv(file).drop_duplicates([*ARM, "rate", "seed", "updates"])


def arm_name(method: str, stages: int) -> str:
    """Return how an arm is called in figures: its delay depends on the depth, or not."""
    if method == SYNC or method.startswith("2bw"):
        return method
    return f"{method}, {stages} {'workers' if method == BSP else 'stages'}"


def plain(method: str) -> str:
    """Return the method that a mitigation was added to, itself if it has none."""
    if method == BSP:
        return BSP
    equation = METHODS[method].equation
    return next(name for name, each in METHODS.items() if each.equation == equation)


def judged(trainings: pd.DataFrame) -> pd.DataFrame:
    """Return the judging seeds' trainings at each arm's own rate and at that of no delay.

    Columns as in :func:`.sweep.table`, and ``at`` (:data:`OWN` or :data:`SYNCS`) and ``arm``.  Only
    complete arms: tuned, not at the border of the rates, and judged on :data:`ENOUGH_SEEDS`.
    """
    rates = chosen(trainings)
    parts = []
    for key, own in trainings.groupby(ARM, sort=False):
        proxy, method, stages, optimizer = key
        judging = own["seed"] < FIRST_TUNING_SEED
        tried, rows = own.loc[~judging, "rate"], own[judging].assign(arm=arm_name(method, stages))
        sync = rates.get((proxy, SYNC, 1, optimizer), math.nan)
        if rates[key] not in (tried.min(), tried.max()):
            parts.append(rows[rows["rate"] == rates[key]].assign(at=OWN))
        parts.append(rows[rows["rate"] == sync].assign(at=SYNCS))
    found = pd.concat(parts, ignore_index=True)
    counts = found.groupby([*ARM, "at"])["seed"].transform("nunique")
    return found[counts >= min(ENOUGH_SEEDS, counts.max())].reset_index(drop=True)


def summary(trainings: pd.DataFrame) -> pd.DataFrame:
    """Return how each arm ended: a row for each, at its own rate and at that of no delay.

    Columns: proxy, optimizer, arm, method, stages, at, rate, seeds, ``diverged``, ``loss`` (mean
    final validation loss, nats) and its ``std`` over seeds, ``cost`` (its mean excess over no delay
    at that one's own rate, nats) with the interval ``low`` to ``high``, ``p`` (paired t-test) and
    ``effect`` (the cost over no delay's standard deviation).
    """
    rows = judged(trainings)
    base = rows[(rows["method"] == SYNC) & (rows["at"] == OWN)]
    bases = {setting: ends(own) for setting, own in base.groupby(SETTING)}
    columns = ["proxy", "optimizer", "arm", "method", "stages", "at", "rate", "seeds", "diverged"]
    columns += ["loss", "std", "cost", "low", "high", "p", "effect"]
    found = []
    for (*key, at, arm), own in rows.groupby([*ARM, "at", "arm"], sort=False):
        proxy, method, stages, optimizer = key
        final, rate, diverged = ends(own), own["rate"].iloc[0], own[FINAL].isna().sum()
        cost = excess(final, bases.get((proxy, optimizer), pd.Series(dtype=float)))
        beside = [cost[name] for name in ("excess", "low", "high", "p")]
        setting = proxy, optimizer, arm, method, stages, at, rate, len(final), diverged
        found.append((*setting, final.mean(), final.std(), *beside, beside[0] / cost["margin"]))
    return pd.DataFrame(found, columns=columns).assign(label="measured")


def ends(rows: pd.DataFrame) -> pd.Series:
    """Return the final validation loss of one arm's trainings by seed, in nats."""
    return rows[FINAL].fillna(rows[UNTRAINED]).set_axis(rows["seed"])


def against(
    rows: pd.DataFrame, method: str, other: str, other_optimizer: str, at: str = OWN
) -> Iterator[dict[str, Any]]:
    """Yield a method's excess over another one in each setting of :func:`judged` rows with both.

    Their depths are equal, or the other's delay does not depend on it; the other is at its own
    rate, and has the method's optimizer or ``other_optimizer``.  At :data:`SYNCS` only where the
    method's own rate is another, or is not found yet.  Columns as of :func:`excess`, and
    ``diverged`` counts trainings of both.
    """
    arms: dict[tuple[str, str, int, str, str], pd.DataFrame] = dict(
        iter(rows.groupby([*ARM, "at"], sort=False))
    )
    for (proxy, name, stages, optimizer, rates), own in arms.items():
        if (name, rates) != (method, at):
            continue
        tuned = arms.get((proxy, name, stages, optimizer, OWN))  # None: not found yet
        at_its_own = tuned is not None and own["rate"].iloc[0] == tuned["rate"].iloc[0]
        depth = METHODS[other].depth(stages)
        theirs = arms.get((proxy, other, depth, other_optimizer or optimizer, OWN))
        if theirs is not None and (at == OWN or not at_its_own):
            setting = {"proxy": proxy, "optimizer": optimizer, "stages": stages, "rates": at}
            diverged = int(own[FINAL].isna().sum() + theirs[FINAL].isna().sum())
            yield setting | {"diverged": diverged} | excess(ends(own), ends(theirs))


def course(
    trainings: pd.DataFrame, proxy: str, optimizer: str, arms: Sequence[str] = ()
) -> tuple[go.Figure, pd.DataFrame]:
    """Return the validation loss of arms at their own rates, bands over seeds, and its numbers."""
    rows = judged(trainings)
    rows = rows[(rows[["at", *SETTING]] == [OWN, proxy, optimizer]).all(axis=1)]
    rows = rows[rows["arm"].isin(arms or rows["arm"])]
    ids = [*SETTING, "arm", "method", "stages", "seed", "updates"]
    frame = rows.melt(ids, VALIDATIONS, "point", "loss")
    part = frame.pop("point").str.removeprefix("validation_").astype(int) / (len(VALIDATIONS) - 1)
    frame["updates"] = (frame["updates"] * part).round().astype(int)
    # No delay first, so that the commonest methods look alike everywhere.
    order = [*METHODS].index
    frame = frame.sort_values("method", key=lambda each: each.map(order), kind="stable")
    # Where the untrained networks are, far above, nothing is to be compared.
    shown = frame[frame["updates"] > 0].assign(label="measured")
    how = {"title": f"{proxy}, {optimizer}: validation loss, each at its own rate"}
    how |= {"label": "measured", "y_title": "loss (nats)"}
    figure = plots.bands(shown, "updates", "loss", "arm", **how)
    return figure.update_yaxes(range=_loss_range(shown)), shown


def _loss_range(shown: pd.DataFrame) -> list[float]:
    """Return the range of losses in which courses are compared, without single seeds' spikes."""
    means = shown.groupby(["arm", "updates"])["loss"].mean()
    later = [own.iloc[len(own) // 3 :].quantile(MOST) for _, own in means.groupby("arm")]
    low, high = shown["loss"].min(), max(later)
    return [low - PAD * (high - low), high + PAD * (high - low)]
