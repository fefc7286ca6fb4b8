"""A memory cap to move: the shortest schedule found under it, among all named methods."""

import math
import random
from functools import cache, partial
from typing import Annotated, Any

import numpy as np
import pandas as pd

import pipekit as pk
import pipekit.units as units
from pipekit.explore.page.controls import number, whole
from pipekit.explore.page.explorer import explore, preset
from pipekit.explore.page.view import Plot, Timeline, View
from pipekit.plots import style
from pipekit.plots.series import Words, marked, series
from pipekit.profiling import LayerProfile, Profile
from pipekit.searching.question import Found, Question
from pipekit.searching.search import Searched
from pipekit.searching.search import search as shortest

PASS_S = 0.01  # of a stage's forward, and of each part of its backward, on the average
ACTIVATION_BYTES, MESSAGE_BYTES, WEIGHT_BYTES = 8e6, 1e6, 16e6  # of each stage, on the average
CAPS = 9  # from what the most frugal named method needs to what the most lavish does
SECONDS = 0.4  # of the search under each cap
PRESETS = {
    "unequal stages": preset(),
    "equal stages, free links": preset(unequal=0.0, link=0.0),
    "slow links": preset(link=1.0),
    "two stages a worker": preset(stages_a_worker=2),
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
    costs = _costs(workers, stages_a_worker, unequal, link)
    curve = _curve(workers, stages_a_worker, microbatches, unequal, link)
    found, named = (curve[curve["kind"] == kind] for kind in ("found", "named"))
    chosen = found.iloc[cap]
    fitting = named[named["peak_bytes"] <= chosen["cap_bytes"]].nsmallest(1, "makespan_s")
    text = (
        f"under {units.written(chosen['cap_bytes'], units.BYTES)} on each worker, found: "
        f"{units.written(chosen['makespan_s'], units.SECONDS)}"
    )
    timelines = [Timeline(pk.simulate(chosen["schedule"], *costs), title="found")]
    for best in fitting.itertuples():
        gain = 100 * (1 - chosen["makespan_s"] / best.makespan_s)
        text += (
            f", {gain:.1f} % less than the best named method that fits, {best.name}: "
            f"{units.written(best.makespan_s, units.SECONDS)}"
        )
        timelines.append(Timeline(pk.simulate(best.schedule, *costs)))
    title = f"{workers} workers, {microbatches} microbatches: what memory buys"
    figure = _figure(curve, chosen["cap_bytes"], title)
    return View(
        text=text,
        timelines=timelines,
        plots={"time_against_memory": Plot(figure, curve.drop(columns="schedule"))},
    )


search = partial(
    explore,
    see,
    presets=PRESETS,
    waits_for=f"searching for a schedule under each of {CAPS} caps, {SECONDS} s each",
)


def _costs(
    workers: int, stages_a_worker: int, unequal: float, link: float
) -> tuple[Profile, pk.Plan, pk.clusters.Cluster | None]:
    """Return a layer for each stage, and the links, if they cost anything."""
    stages, chance = workers * stages_a_worker, random.Random(0)

    def about(average: float) -> float:
        return average * chance.uniform(1 - unequal, 1 + unequal)

    layers = []
    for stage in range(stages):
        forward, inputs, weights = (about(PASS_S) for _ in range(3))
        layer = LayerProfile(
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
        layers.append(layer)
    profile = Profile(tuple(layers), input_bytes=MESSAGE_BYTES, provenance={"label": "simulated"})
    links = pk.clusters.flat(workers, MESSAGE_BYTES / (link * PASS_S)) if link else None
    return profile, pk.Plan.by_hand([1] * stages), links


@cache
def _curve(
    workers: int, stages_a_worker: int, microbatches: int, unequal: float, link: float
) -> pd.DataFrame:
    """Search under caps, each by the same factor above the one before.

    A row is a schedule, found or named, with the bytes of the fullest worker.
    """
    profile, plan, links = _costs(workers, stages_a_worker, unequal, link)
    methods = Question(profile, plan, links, None, workers, microbatches).methods
    named = sorted(methods, key=lambda each: max(each.peak_bytes))
    least, most = (max(named[at].peak_bytes) for at in (0, -1))
    caps: list[float] = np.geomspace(least, most, CAPS).tolist()
    found: list[Searched] = []
    for cap in caps:
        best = shortest(
            profile, plan, links, cap, microbatches=microbatches, workers=workers, seconds=SECONDS
        )
        # What was found under a lower cap stays, unless this is shorter.
        found.append(min([*found[-1:], best], key=lambda each: each.makespan_s))
    rows: list[tuple[str, float, Found]] = [
        *(("found", *row) for row in zip(caps, found, strict=True)),
        *(("named", math.nan, each) for each in named),
    ]
    return pd.DataFrame(
        [
            (kind, each.schedule.title, cap, max(each.peak_bytes), each.makespan_s, each.schedule)
            for kind, cap, each in rows
        ],
        columns=["kind", "name", "cap_bytes", "peak_bytes", "makespan_s", "schedule"],
    )


def _figure(curve: pd.DataFrame, cap: float, title: str) -> Any:
    is_found = curve["kind"] == "found"
    bytes_ = curve["cap_bytes"].where(is_found, curve["peak_bytes"])
    shown = pd.DataFrame(
        {
            "name": curve["name"].where(~is_found, "found"),
            "memory of the fullest worker (MB)": bytes_ / 1e6,
            "time of a batch (ms)": curve["makespan_s"] * 1e3,
        }
    )
    name, x, y = shown.columns
    steps = {"mode": "lines", "line": {**style.line(0), "shape": "hv"}}  # of what was found
    words = Words(title=title, label="simulated")
    figure = series(shown, x, y, name, lambda k: marked(k) if k else steps, **words)
    line = {"color": style.GREY, "dash": "dot", "width": 1.5}
    ends = [shown[y].min(), shown[y].max()]
    return figure.add_scatter(x=[cap / 1e6] * 2, y=ends, name="cap", mode="lines", line=line)
