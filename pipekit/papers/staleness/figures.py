"""The sweep's figures: courses over updates, samples and simulated seconds; rates; costs."""

import math
from collections.abc import Mapping

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from pipekit import plots
from pipekit.papers.staleness import comparison
from pipekit.papers.staleness.comparison import OWN
from pipekit.papers.staleness.methods import SYNC
from pipekit.papers.staleness.sweep import ARM, FINAL, FIRST_TUNING_SEED

GIB = 2**30
AXES: Mapping[str, str] = {
    "updates": "updates",
    "samples": "samples",
    "seconds": "seconds on the paper's cluster (simulated)",
}


def course(
    trainings: pd.DataFrame,
    proxy: str,
    optimizer: str,
    x: str = "updates",
    seconds: pd.Series | None = None,
) -> tuple[go.Figure, pd.DataFrame]:
    """Return the validation loss of all arms at their own rates, bands over seeds, and its numbers.

    Args:
        trainings: of the sweep.
        proxy: whose.
        optimizer: likewise.
        x: one of :data:`AXES`.
        seconds: of an update by method and stages (:func:`.speed.update_seconds`), for the last.
    """
    frame = comparison.courses(trainings)
    frame = frame[(frame["proxy"] == proxy) & (frame["optimizer"] == optimizer)]
    label = "measured"
    if x == "seconds":
        assert seconds is not None
        each = pd.MultiIndex.from_frame(frame[["method", "stages"]])
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
    means = means.assign(
        arm=names, loss=means["loss"].replace(math.inf, np.nan), power=np.log2(means["rate"])
    )
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
    return figure, means.assign(label="measured")


def costs(table: pd.DataFrame, at: str = OWN) -> tuple[go.Figure, pd.DataFrame]:
    """Return what delay costs each arm, a symbol an optimizer, and its numbers."""
    rows = table[(table["at"] == at) & (table["method"] != SYNC) & np.isfinite(table["cost"])]
    names = rows["proxy"] + ": " + rows["arm"]
    order = {name: place for place, name in enumerate(dict.fromkeys(names))}
    rows = rows.assign(place=names.map(order))
    figure = plots.points(
        rows,
        "cost",
        "place",
        "optimizer",
        title=f"What delay costs at the {at}: final loss above that without delay",
        label="measured",
        x_title="excess in validation loss (nats), mean over seeds",
        y_title="",
    )
    figure.update_yaxes(tickvals=[*order.values()], ticktext=[*order], autorange="reversed")
    return figure, rows


def speed(points: pd.DataFrame, title: str) -> tuple[go.Figure, pd.DataFrame]:
    """Return speed against staleness: a point a method, named with its memory, and its numbers.

    Args:
        points: of :func:`.speed.points`.
        title: which network, machines and proxy.
    """
    sizes = points["memory_bytes"] / GIB
    shown = points.assign(
        name=[f"{arm}, {size:.3g} GiB" for arm, size in zip(points["arm"], sizes, strict=True)],
        milliseconds=1e3 * points["seconds"],
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
    return figure, shown


def time_to_loss(trainings: pd.DataFrame, seconds: pd.Series) -> pd.DataFrame:
    """Return when each arm is at a loss that all of its setting reach: a row an arm.

    Columns: proxy, optimizer, arm, ``target`` (nats), ``updates`` (measured), ``ms an update``
    (simulated), ``seconds`` (the product), ``speedup`` over no delay.
    """
    course = comparison.courses(trainings)
    found = []
    for (proxy, optimizer), own in course.groupby(comparison.SETTING, sort=False):
        last = own[own["updates"] == own["updates"].max()]
        target = float(last.groupby("arm")["loss"].mean().max())
        for arm, updates in comparison.reached(own, target).items():
            first = own[own["arm"] == arm].iloc[0]
            each = seconds.get((first["method"], first["stages"]), math.nan)
            found.append((proxy, optimizer, arm, target, updates, 1e3 * each, updates * each))
    columns = [*comparison.SETTING, "arm", "target", "updates", "ms an update", "seconds"]
    table = pd.DataFrame(found, columns=columns)
    base = table[table["arm"] == SYNC].set_index(comparison.SETTING)["seconds"]
    bases = base.reindex(pd.MultiIndex.from_frame(table[comparison.SETTING])).to_numpy()
    return table.assign(speedup=bases / table["seconds"], label="measured x simulated")
