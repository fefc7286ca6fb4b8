"""The sweep's figures: courses over updates, samples and simulated seconds; rates; costs."""

import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from experiments.staleness import comparison
from experiments.staleness.comparison import OWN, SYNCS
from experiments.staleness.methods import METHODS, SYNC
from experiments.staleness.optimizers import OPTIMIZERS
from experiments.staleness.sweep import ARM, FINAL, FIRST_TUNING_SEED
from pipekit import plots
from pipekit.units import bytes_text

RATES: Mapping[str, str] = {OWN: "each at its own rate", SYNCS: "all at the rate of no delay"}
PAD = 0.05
"""Of an axis, beyond what is compared."""
MOST = 0.75
"""Of a course's later points, which are in the picture."""
MARKER_PX = 8, 20
"""Of the least and the greatest memory."""
DELAYS, MITIGATED = "delays", "mitigations"
AXES: Mapping[str, str] = {
    "updates": "updates",
    "samples": "samples",
    "seconds": "seconds on the paper's cluster (simulated)",
}


def panels(trainings: pd.DataFrame, proxy: str, optimizer: str) -> dict[str, list[str]]:
    """Return the arms that are drawn together, by the panel's name: a dozen are too many.

    Methods as they are, and where there are any, mitigations beside what they were added to; each
    with no delay.
    """
    rows = comparison.judged(trainings)
    own = rows[(rows["proxy"] == proxy) & (rows["optimizer"] == optimizer)]
    arms = dict.fromkeys(own[["method", "stages"]].itertuples(index=False, name=None))
    added = {arm: (comparison.plain(arm[0]), arm[1]) for arm in _in_order(arms)}
    mitigated = {arm for arm, base in added.items() if arm != base}
    found = {DELAYS: [arm for arm in added if arm not in mitigated]}
    if mitigated:
        bases = {added[arm] for arm in mitigated}
        found[MITIGATED] = [a for a in added if a in mitigated | bases or a[0] == SYNC]
    return {name: [comparison.arm_name(*arm) for arm in own] for name, own in found.items()}


def course(
    trainings: pd.DataFrame,
    proxy: str,
    optimizer: str,
    x: str = "updates",
    seconds: pd.Series | None = None,
    arms: Sequence[str] = (),
) -> tuple[go.Figure, pd.DataFrame]:
    """Return the validation loss of arms at their own rates, bands over seeds, and its numbers.

    Args:
        trainings: of the sweep.
        proxy: whose.
        optimizer: likewise.
        x: one of :data:`AXES`.
        seconds: of an update (:func:`.speed.update_seconds`), for the last.
        arms: which of them; by default all.
    """
    frame = comparison.courses(trainings)
    frame = frame[(frame["proxy"] == proxy) & (frame["optimizer"] == optimizer)]
    frame = frame[frame["arm"].isin(arms or frame["arm"])]
    frame = _by_method(frame)
    label = "measured"
    if x == "seconds":
        assert seconds is not None
        each = pd.MultiIndex.from_frame(frame[[*comparison.SETTING, "method", "stages"]])
        frame = frame.assign(seconds=frame["updates"] * seconds.reindex(each).to_numpy())
        frame, label = frame.dropna(subset="seconds"), "measured x simulated"
    # Where the untrained networks are, far above, nothing is to be compared.
    shown = frame[frame["updates"] > 0].assign(label=label)
    figure = plots.bands(
        shown,
        x,
        "loss",
        "arm",
        title=f"{proxy}, {optimizer}: validation loss, each at its own rate",
        label=label,
        x_title=AXES[x],
        y_title="loss (nats)",
    )
    figure.update_yaxes(range=_loss_range(shown))
    return figure, shown


def rates(trainings: pd.DataFrame, proxy: str, optimizer: str) -> tuple[go.Figure, pd.DataFrame]:
    """Return a map of the tuning seeds' final loss over arms and rates, and its numbers."""
    tuning = trainings[trainings["seed"] >= FIRST_TUNING_SEED]
    own = tuning[(tuning["proxy"] == proxy) & (tuning["optimizer"] == optimizer)]
    finals = own.assign(loss=own[FINAL].fillna(math.inf))
    means = finals.groupby([*ARM, "rate"], sort=False)["loss"].mean().reset_index()
    names = [
        comparison.arm_name(m, n) for m, n in zip(means["method"], means["stages"], strict=True)
    ]
    powers = np.log2(means["rate"]).round().astype(int)
    means = means.assign(arm=names, loss=means["loss"].replace(math.inf, np.nan), power=powers)
    best = means.loc[means["loss"].idxmin()]
    figure = plots.grid(
        means,
        "power",
        "arm",
        "loss",
        best=(best["power"], best["arm"]),
        title=f"{proxy}, {optimizer}: final validation loss by learning rate, tuning seeds",
        label="measured",
        unit="nats",
        missing="diverged",
        x_title="learning rate, as a power of two",
        y_title="",
    )
    figure.update_yaxes(title=None)
    return figure, means.assign(label="measured")


def compared(table: pd.DataFrame) -> list[tuple[str, str]]:
    """Return the proxies, each with the :data:`RATES` at which :func:`costs` has anything to draw.

    A method whose own rate is not found yet, at the border of those that were tried, is judged at
    that of no delay alone.
    """
    rows = _delayed(table)
    found = {*rows[["proxy", "at"]].itertuples(index=False, name=None)}
    return [(p, at) for p in rows["proxy"].unique() for at in RATES if (p, at) in found]


def costs(table: pd.DataFrame, proxy: str, at: str = OWN) -> tuple[go.Figure, pd.DataFrame]:
    """Return what delay costs each arm on a proxy, with intervals over seeds, and its numbers."""
    rows = _delayed(table)
    rows = rows[(rows["proxy"] == proxy) & (rows["at"] == at)]
    rows = rows.sort_values(["stages", "arm", "optimizer"], kind="stable")
    figure = plots.intervals(
        rows,
        "arm",
        "cost",
        "low",
        "high",
        "optimizer",
        title=f"{proxy}: what delay costs, {RATES[at]}",
        label="measured",
        x_title="final validation loss above that without delay (nats), mean over seeds",
        known=[*OPTIMIZERS],
    )
    return figure, rows


def earnings(table: pd.DataFrame, proxy: str) -> tuple[go.Figure, pd.DataFrame]:
    """Return what mitigations earn on a proxy, of :func:`.findings.mitigations`; to the left is
    better.
    """
    rows = table[table["proxy"] == proxy]
    rows = rows.assign(beside=rows["method"] + " over " + rows["of"])
    figure = plots.intervals(
        rows,
        "beside",
        "excess",
        "low",
        "high",
        "optimizer",
        title=f"{proxy}: what a mitigation changes, each at its own rate",
        label="measured",
        x_title="final validation loss above that without it (nats), mean over seeds",
        known=[*OPTIMIZERS],
    )
    return figure, rows


def speed(points: pd.DataFrame, title: str) -> tuple[go.Figure, pd.DataFrame]:
    """Return speed against staleness: a point a method, as large as its memory, and its numbers.

    Args:
        points: of :func:`.speed.points`.
        title: which network, machines and proxy.
    """
    shown = _by_method(points)
    shown = shown.assign(
        name=[
            f"{arm}, {bytes_text(size)}"
            for arm, size in zip(shown["arm"], shown["memory_bytes"], strict=True)
        ],
        milliseconds=1e3 * shown["seconds"],
    )
    figure = plots.points(
        shown,
        "milliseconds",
        "loss",
        "name",
        title=title,
        label="simulated x measured",
        x_title="time of a sample (ms, simulated)",
        y_title="validation loss at the end (nats, measured)",
    )
    sizes = shown["memory_bytes"]
    least, most = MARKER_PX
    for trace, share in zip(figure.data, sizes / sizes.max(), strict=True):
        trace.marker.size = least + (most - least) * share
        trace.marker.opacity = 0.8
    return figure, shown


def time_to_loss(trainings: pd.DataFrame, seconds: pd.Series) -> pd.DataFrame:
    """Return when each arm, and no delay, are at a loss that both reach: a row an arm.

    The loss is the greater of their two at the end, which for a method that learns less is its own.
    No delay is then in mid-course, at a learning rate that has not come down yet: that flatters the
    method.

    Columns: proxy, optimizer, arm, ``target`` (nats), ``updates`` and ``updates without delay``
    (measured), ``seconds`` and ``seconds without delay`` (times those of an update, simulated),
    ``speedup`` over no delay.
    """
    course = comparison.courses(trainings)
    found = []
    for (proxy, optimizer), own in course.groupby(comparison.SETTING, sort=False):
        last = own[own["updates"] == own["updates"].max()]
        final = last.groupby(["method", "stages", "arm"], sort=False)["loss"].mean()
        for (method, stages, arm), end in final.items():
            sync = final.get((SYNC, 1, SYNC), math.nan)
            times = seconds.get((proxy, optimizer), pd.Series(dtype=float))
            each, base = (times.get(key, math.nan) for key in ((method, stages), (SYNC, 1)))
            if method == SYNC or not math.isfinite(end + sync + each + base):
                continue
            target = max(end, sync)
            reached = comparison.reached(own, target)
            updates = reached[arm], reached[SYNC]
            taken = updates[0] * each, updates[1] * base
            found.append((proxy, optimizer, arm, target, *updates, *taken, taken[1] / taken[0]))
    columns = [*comparison.SETTING, "arm", "target", "updates", "updates without delay"]
    columns += ["seconds", "seconds without delay", "speedup"]
    return pd.DataFrame(found, columns=columns).assign(label="measured x simulated")


def _delayed(table: pd.DataFrame) -> pd.DataFrame:
    return table[table["method"] != SYNC].dropna(subset="cost")


def _by_method(frame: pd.DataFrame) -> pd.DataFrame:
    """Return its rows with no delay first, so that the commonest methods look alike everywhere."""
    return frame.sort_values("method", key=lambda each: each.map([*METHODS].index), kind="stable")


def _in_order(arms: Iterable[tuple[str, int]]) -> list[tuple[str, int]]:
    return sorted(arms, key=lambda arm: ([*METHODS].index(arm[0]), arm[1]))


def _loss_range(shown: pd.DataFrame) -> list[float]:
    """Return the range of losses in which courses are compared.

    It ends where the slowest arm's mean is for the most part, once a third of its points are over:
    a spike of one seed would press all the others together.
    """
    means = shown.groupby(["arm", "updates"])["loss"].mean()
    later = [own.iloc[len(own) // 3 :].quantile(MOST) for _, own in means.groupby("arm")]
    low, high = shown["loss"].min(), max(later)
    return [low - PAD * (high - low), high + PAD * (high - low)]
