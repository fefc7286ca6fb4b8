"""A recorded run, and the same step without one of the causes that made it slow."""

from functools import lru_cache, partial
from typing import Annotated

import numpy as np
import pandas as pd

import pipekit as pk
from pipekit.explore.page.controls import buttons, count, entry
from pipekit.explore.page.explorer import explore
from pipekit.explore.page.view import Timeline, View
from pipekit.measured.causes import KINDS
from pipekit.profiling import LayerProfile, Profile
from pipekit.simulation import Costs, simulate

EXAMPLE = "example"
"""In place of a path: a simulated run with a heavy stage and microbatches of unequal length."""
NOTHING = "nothing"


def see(
    path: Annotated[str, entry("trace")] = EXAMPLE,
    without: Annotated[
        str, buttons([(f"without {kind}", kind) for kind in (NOTHING, *KINDS)])
    ] = "unequal stages",
    replica: Annotated[int, count("pipeline", 0, 10_000)] = 0,
) -> View:
    """Return a recorded step, the step without a cause, and what each cause costs.

    Args:
        path: of a trace (:func:`pipekit.read_trace`), or :data:`EXAMPLE`.
        without: a kind of cause; or :data:`NOTHING`.
        replica: which of the pipelines that train together is drawn.
    """
    found = explanation(path)
    causes = {cause.kind: cause for cause in found.causes}
    traces = [found.timeline(replica=replica)]
    if without != NOTHING:
        if without not in causes:
            raise ValueError(f"{without} costs nothing here: choose one of {', '.join(causes)}")
        traces.append(found.timeline(causes[without], replica))
    rows = [
        {"cause": c.kind, "what": c.text, "saves (ms a step)": 1e3 * c.saves_s}
        for c in found.causes
    ]
    return View(
        text=str(found),
        timelines=[Timeline(trace) for trace in traces],
        table=pd.DataFrame(rows),
        caption="What a run without each cause would save (simulated on the recorded durations).",
    )


why_slow = partial(explore, see, waits_for="reading and replaying")


@lru_cache(4)
def explanation(path: str) -> pk.measured.Explanation:
    """Return what is said of a trace, or of the example."""
    return pk.explain(_example() if path == EXAMPLE else pk.read_trace(path))


def _example() -> pk.Trace:
    schedule = pk.schedules.flush(4, 8).take(1)
    chance = np.random.default_rng(0)
    lengths = dict(enumerate(chance.uniform(0.7, 1.3, schedule.microbatches)))
    layers = [LayerProfile("", 0.01 * x, 0.02 * x, output_bytes=4e6) for x in (1, 1.4, 1, 1)]
    costs = Costs(Profile(tuple(layers)), microbatches=lengths)
    return simulate(schedule, costs, cluster=pk.clusters.flat(4, 3e9))
