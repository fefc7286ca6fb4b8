"""The sweep's figures that several pages draw: courses, and speed against staleness."""

from collections.abc import Sequence

import pandas as pd
import plotly.graph_objects as go

from experiments.staleness import comparison
from experiments.staleness.methods import METHODS
from pipekit import plots
from pipekit.units import bytes_text

PAD = 0.05
"""Of an axis, beyond what is compared."""
MOST = 0.75
"""Of a course's later points, which are in the picture."""
MARKER_PX = 8, 20
"""Of the least and the greatest memory."""


def course(
    trainings: pd.DataFrame, proxy: str, optimizer: str, arms: Sequence[str] = ()
) -> tuple[go.Figure, pd.DataFrame]:
    """Return the validation loss of arms at their own rates, bands over seeds, and its numbers."""
    frame = comparison.courses(trainings)
    frame = frame[(frame["proxy"] == proxy) & (frame["optimizer"] == optimizer)]
    frame = _by_method(frame[frame["arm"].isin(arms or frame["arm"])])
    # Where the untrained networks are, far above, nothing is to be compared.
    shown = frame[frame["updates"] > 0].assign(label="measured")
    how = {"title": f"{proxy}, {optimizer}: validation loss, each at its own rate"}
    how |= {"label": "measured", "y_title": "loss (nats)"}
    figure = plots.bands(shown, "updates", "loss", "arm", **how)
    return figure.update_yaxes(range=_loss_range(shown)), shown


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
