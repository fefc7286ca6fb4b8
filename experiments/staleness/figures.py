"""The sweep's figures that several pages draw: courses, and speed against staleness."""

import math
from collections.abc import Mapping, Sequence

import pandas as pd
import plotly.graph_objects as go

from experiments.staleness import comparison
from experiments.staleness.methods import METHODS, SYNC
from pipekit import plots
from pipekit.units import bytes_text

PAD = 0.05
"""Of an axis, beyond what is compared."""
MOST = 0.75
"""Of a course's later points, which are in the picture."""
MARKER_PX = 8, 20
"""Of the least and the greatest memory."""
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
    arms: Sequence[str] = (),
) -> tuple[go.Figure, pd.DataFrame]:
    """Return the validation loss of arms at their own rates, bands over seeds, and its numbers."""
    frame = comparison.courses(trainings)
    frame = frame[(frame["proxy"] == proxy) & (frame["optimizer"] == optimizer)]
    frame = _by_method(frame[frame["arm"].isin(arms or frame["arm"])])
    label = "measured"
    if x == "seconds":
        assert seconds is not None
        each = pd.MultiIndex.from_frame(frame[[*comparison.SETTING, "method", "stages"]])
        frame = frame.assign(seconds=frame["updates"] * seconds.reindex(each).to_numpy())
        frame, label = frame.dropna(subset="seconds"), "measured x simulated"
    # Where the untrained networks are, far above, nothing is to be compared.
    shown = frame[frame["updates"] > 0].assign(label=label)
    title = f"{proxy}, {optimizer}: validation loss, each at its own rate"
    axes = {"x_title": AXES[x], "y_title": "loss (nats)"}
    figure = plots.bands(shown, x, "loss", "arm", title=title, label=label, **axes)
    figure.update_yaxes(range=_loss_range(shown))
    return figure, shown


def speed(points: pd.DataFrame, title: str) -> tuple[go.Figure, pd.DataFrame]:
    """Return speed against staleness: a point a method, as large as its memory, and its numbers."""
    shown = _by_method(points)
    sizes = shown["memory_bytes"]
    shown = shown.assign(
        name=shown["arm"] + ", " + sizes.map(bytes_text), milliseconds=1e3 * shown["seconds"]
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
            reached = comparison.reached_after(own, max(end, sync))
            updates = reached[arm], reached[SYNC]
            taken = updates[0] * each, updates[1] * base
            numbers = max(end, sync), *updates, *taken, taken[1] / taken[0]
            found.append((proxy, optimizer, arm, *numbers))
    columns = [*comparison.SETTING, "arm", "target", "updates", "updates without delay"]
    columns += ["seconds", "seconds without delay", "speedup"]
    return pd.DataFrame(found, columns=columns).assign(label="measured x simulated")


def _by_method(frame: pd.DataFrame) -> pd.DataFrame:
    """Return its rows with no delay first, so that the commonest methods look alike everywhere."""
    return frame.sort_values("method", key=lambda each: each.map([*METHODS].index), kind="stable")


def _loss_range(shown: pd.DataFrame) -> list[float]:
    """Return the range of losses in which courses are compared.

    It ends where the slowest arm's mean is for the most part, once a third of its points are over:
    a spike of one seed would press all the others together.
    """
    means = shown.groupby(["arm", "updates"])["loss"].mean()
    later = [own.iloc[len(own) // 3 :].quantile(MOST) for _, own in means.groupby("arm")]
    low, high = shown["loss"].min(), max(later)
    return [low - PAD * (high - low), high + PAD * (high - low)]
