"""A memory cap to move: the shortest schedule found under it, among all named methods."""

import random
from functools import cache, partial
from typing import Annotated, Any, NamedTuple

import numpy as np
import pandas as pd

import pipekit.units as units
from pipekit.clusters import Cluster, flat
from pipekit.explore.page.controls import number, whole
from pipekit.explore.page.explorer import explore
from pipekit.explore.page.view import Plot, Timeline, View
from pipekit.plans import Plan
from pipekit.plots import style
from pipekit.plots.series import series
from pipekit.profiling import LayerProfile, Profile
from pipekit.schedules.methods.by_name import named_schedules
from pipekit.searching.judge import Found, Judge
from pipekit.searching.search import Searched
from pipekit.searching.search import search as shortest
from pipekit.simulation import simulate

PASS_S = 0.01
"""Of a stage's forward, and of each part of its backward, on the average."""
ACTIVATION_BYTES, MESSAGE_BYTES, WEIGHT_BYTES = 8e6, 1e6, 16e6
"""Of each stage, on the average: of a microbatch, and of the parameters."""
CAPS = 9
"""How many there are, from what the most frugal named method needs to what the most lavish does."""
SECONDS = 0.4
"""Of the search under each cap."""
PRESETS: dict[str, dict[str, Any]] = {
    "unequal stages": {},
    "equal stages, free links": {"unequal": 0.0, "link": 0.0},
    "slow links": {"link": 1.0},
    "two stages a worker": {"stages_a_worker": 2},
}


def see(
    cap: Annotated[int, whole("memory cap (step)", 0, CAPS - 1)] = 2,
    workers: Annotated[int, whole("workers", 2, 8)] = 4,
    stages_a_worker: Annotated[int, whole("stages a worker", 1, 2)] = 1,
    microbatches: Annotated[int, whole("microbatches", 2, 16)] = 8,
    unequal: Annotated[float, number("unequal by", 0, 0.9, 0.1)] = 0.5,
    link: Annotated[float, number("message : forward", 0, 1, 0.1)] = 0.1,
) -> View:
    """Return time against memory, and the timeline of the schedule found under a cap.

    Args:
        cap: which of :data:`CAPS`, from 0.
        workers: how many; each has ``stages_a_worker`` stages.
        microbatches: of the batch.
        unequal: the most by which costs differ from their average, as a part of it.
        link: seconds of a message, by those of a forward.
    """
    setting = _Setting(workers, stages_a_worker, microbatches, unequal, link)
    curve = _curve(setting)
    found, most = curve.found[cap], curve.caps[cap]
    fitting = [each for each in curve.named if max(each.peak_bytes) <= most]
    best = min(fitting, key=lambda each: each.makespan_s, default=None)
    text = (
        f"under {units.written(most, units.BYTES)} on each worker, found: "
        f"{units.written(found.makespan_s, units.SECONDS)}"
    )
    timelines = [Timeline(simulate(found.schedule, *setting.costs()), title="found")]
    if best is not None:
        gain = 100 * (1 - found.makespan_s / best.makespan_s)
        text += (
            f", {gain:.1f} % less than the best named method that fits, {best.schedule.title}: "
            f"{units.written(best.makespan_s, units.SECONDS)}"
        )
        timelines.append(Timeline(simulate(best.schedule, *setting.costs())))
    title = f"{workers} workers, {microbatches} microbatches: what memory buys"
    return View(
        text=text,
        timelines=timelines,
        plots={"time_against_memory": Plot(_figure(curve, most, title), curve.frame)},
    )


search = partial(
    explore,
    see,
    presets=PRESETS,
    waits_for=f"searching for a schedule under each of {CAPS} caps, {SECONDS} s each",
)
"""Display the explorer; see :func:`pipekit.explore.page.explorer.explore`."""


class _Setting(NamedTuple):
    workers: int
    stages_a_worker: int
    microbatches: int
    unequal: float
    link: float

    def costs(self) -> tuple[Profile, Plan, Cluster | None]:
        """Return a layer for each stage, and the links, if they cost anything."""
        stages = self.workers * self.stages_a_worker
        links = flat(self.workers, MESSAGE_BYTES / (self.link * PASS_S)) if self.link else None
        return _profile(stages, self.unequal), Plan.by_hand([1] * stages), links


def _profile(stages: int, unequal: float) -> Profile:
    chance = random.Random(0)

    def about(average: float) -> float:
        return average * chance.uniform(1 - unequal, 1 + unequal)

    layers = []
    for stage in range(stages):
        forward, inputs, weights = (about(PASS_S) for _ in range(3))
        layers.append(
            LayerProfile(
                f"stage {stage}",
                forward,
                inputs + weights,
                output_bytes=MESSAGE_BYTES,
                parameter_bytes=about(WEIGHT_BYTES),
                saved_bytes=about(ACTIVATION_BYTES),
                saves_output=True,
                backward_input_s=inputs,
                backward_weight_s=weights,
            )
        )
    return Profile(tuple(layers), input_bytes=MESSAGE_BYTES, provenance={"label": "simulated"})


class _Curve(NamedTuple):
    """The shortest schedule found under each cap, and the named methods, the most frugal first."""

    caps: list[float]
    found: list[Searched]
    named: list[Found]

    @property
    def frame(self) -> pd.DataFrame:
        """A row each; bytes are of the fullest worker."""
        rows: list[tuple[str, float, Searched | Found]] = [
            ("found", cap, each) for cap, each in zip(self.caps, self.found, strict=True)
        ]
        rows += [("named", float("nan"), each) for each in self.named]
        return pd.DataFrame(
            [
                (kind, each.schedule.title, cap, max(each.peak_bytes), each.makespan_s)
                for kind, cap, each in rows
            ],
            columns=["kind", "name", "cap_bytes", "peak_bytes", "makespan_s"],
        )


@cache
def _curve(setting: _Setting) -> _Curve:
    """Search under caps from what the most frugal named method needs to what the most lavish does.

    Each cap is by the same factor above the one before.
    """
    profile, plan, links = setting.costs()
    workers, microbatches = setting.workers, setting.microbatches
    judge = Judge(profile, plan, links, None, workers, 0.0)
    able = named_schedules(len(plan.stages), workers, microbatches, two_directions=False)
    named = sorted(map(judge.found, able), key=lambda each: max(each.peak_bytes))
    least, most = (max(named[at].peak_bytes) for at in (0, -1))
    caps: list[float] = np.geomspace(least, most, CAPS).tolist()
    found: list[Searched] = []
    for cap in caps:
        best = shortest(
            profile, plan, links, cap, microbatches=microbatches, workers=workers, seconds=SECONDS
        )
        # What was found under a lower cap stays, unless this is shorter.
        found.append(min([*found[-1:], best], key=lambda each: each.makespan_s))
    return _Curve(caps, found, named)


def _figure(curve: _Curve, cap: float, title: str) -> Any:
    """Draw the curve, the named methods as points, and the cap."""
    frame = curve.frame
    is_found = frame["kind"] == "found"
    bytes_ = frame["cap_bytes"].where(is_found, frame["peak_bytes"])
    shown = frame.assign(
        name=frame["name"].where(~is_found, "found"),
        megabytes=bytes_ / 1e6,
        milliseconds=frame["makespan_s"] * 1e3,
    )

    def look(position: int) -> dict[str, Any]:
        if position:
            return {"mode": "markers", "marker": style.marker(position)}
        return {"mode": "lines", "line": {**style.line(0), "shape": "hv"}}

    figure = series(
        shown,
        "megabytes",
        "milliseconds",
        "name",
        look,
        title=title,
        label="simulated",
        x_title="memory of the fullest worker (MB)",
        y_title="time of a batch (ms)",
    )
    ends = shown["milliseconds"].agg(["min", "max"]).to_numpy()
    line = {"color": style.GREY, "dash": "dot", "width": 1.5}
    figure.add_scatter(x=[cap / 1e6] * 2, y=ends, name="cap", mode="lines", line=line)
    return figure
