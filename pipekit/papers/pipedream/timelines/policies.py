"""Unequal stages, and the policies that section 3.3 argues against: forward or backward first."""

import random
from collections.abc import Sequence

import pandas as pd
import plotly.graph_objects as go

from pipekit import plots
from pipekit.papers.findings import Finding
from pipekit.papers.pipedream.steady_state import idle_error, utilisation, window
from pipekit.papers.pipedream.timelines.start_up import STRAIGHT, one_layer_stages
from pipekit.papers.pipedream.timelines.tables import by_preference
from pipekit.schedules import Op, Schedule, check, optimal_in_flight, pipedream
from pipekit.simulation import simulate
from pipekit.traces import Trace

LENGTHS = [(1, 2)] * 4
"""Time units of a forward and a backward of each stage, where the policies are drawn."""

FILLED = 250
"""Minibatches after which a stage is nearly as far ahead of slower ones as it may get."""


def unequal_stages(pipelines: int, seed: int) -> pd.DataFrame:
    """Simulate random unequal pipelines, and compare their idle share with the closed form.

    A row a pipeline: idle shares by 1 - mean / max of the stages and simulated, "stages", and
    "error" (relative).  A stage nearly as slow as the slowest gets ahead of it only slowly, and is
    busier meanwhile, so that the runs fill their pipelines for long.
    """
    draw, rows = random.Random(seed), []
    for _ in range(pipelines):
        stages = draw.randint(2, 8)
        times = [(draw.uniform(1, 5), draw.uniform(1, 9)) for _ in range(stages)]
        straight, margin = [1] * stages, FILLED // stages
        minibatches = window(straight, 20, margin).minibatches
        trace = simulate(pipedream(stages).take(minibatches), one_layer_stages(times))
        idle = 1 - utilisation(trace, straight, margin)
        whole = [forward + backward for forward, backward in times]
        rows.append(
            {
                "idle share, 1 - mean / max": 1 - sum(whole) / stages / max(whole),
                "idle share, simulated": idle,
                "stages": f"{stages} stages",
                "error": idle_error(whole, idle),
            }
        )
    return pd.DataFrame(rows).sort_values("stages")


def idle_figure(table: pd.DataFrame) -> go.Figure:
    """Draw :func:`unequal_stages`."""
    title = f"Idle as the closed form says, within {table['error'].max():.1e}"
    axes = "idle share, 1 - mean / max", "idle share, simulated", "stages"
    return plots.points(table, *axes, title=title, label="exact, simulated", diagonal=True)


def idle_finding(table: pd.DataFrame) -> Finding:
    """Return the largest error of the closed form in :func:`unequal_stages`."""
    note = (
        f"by the clock, the worst of {len(table)} random pipelines, after {2 * FILLED} minibatches "
        "have filled them: a stage nearly as slow as the slowest takes long to get ahead of it"
    )
    most = table["error"].max()
    return Finding.simulated("pipedream-intro-bad-partition-idle", most, note, "bad_partition.svg")


def policies() -> list[Schedule]:
    """Return forward first, backward first and 1F1B for 12 minibatches on four equal stages."""
    return [
        by_preference(LENGTHS, 12, Op.FORWARD),
        by_preference(LENGTHS, 12, Op.BACKWARD, admitted=4),
        pipedream(4).take(12),
    ]


def events(schedules: Sequence[Schedule]) -> pd.DataFrame:
    """Return the slots of several schedules' tasks, named by the column "policy"."""
    return pd.concat([Trace.from_schedule(s).frame.assign(policy=s.name) for s in schedules])


def forward_first_finding(pass_s: float) -> Finding:
    """Return whether forward first, a backward as two forwards, delays and admits all."""
    passes = one_layer_stages([(pass_s, 2 * pass_s)] * 4)

    def first_update(schedule: Schedule) -> float:
        frame = simulate(schedule, passes).frame
        return float(frame.loc[frame["op"] == "UPDATE", "end_s"].min())

    forward_first, _, ours = policies()
    unbounded = all(
        max(check(by_preference(LENGTHS, n, Op.FORWARD)).peak_in_flight) == n for n in (8, 16, 32)
    )
    late, early = first_update(forward_first), first_update(ours)
    note = (
        f"first update of 12 minibatches after {late:.2f} s, with 1F1B {early:.2f} s; with "
        "unlimited admission all of 8, 16 and 32 minibatches are in flight"
    )
    hinders = late > early and unbounded
    return Finding.simulated("pipedream-forward-first-hinders", hinders, note, "policies.svg")


CAPS = 1, 2
"""Multiples of NOAM that both policies may have in flight where they are compared."""


def backward_first(pipelines: int, minibatches: int, seed: int) -> pd.DataFrame:
    """Simulate backward first and 1F1B on random pipelines of four unequal stages.

    A row a pipeline and cap, the minibatches that may be in flight, which is the same for both
    policies: the busy share in steady state of "backward first" and "1F1B".
    """
    draw, rows, noam = random.Random(seed), [], optimal_in_flight(STRAIGHT)
    for _ in range(pipelines):
        lengths = [(draw.randint(1, 4), draw.randint(1, 8)) for _ in range(4)]
        stages = one_layer_stages(lengths)
        for times in CAPS:
            in_flight = [times * count for count in noam]
            cap = in_flight[0]
            tables = {
                "backward first": by_preference(lengths, minibatches, Op.BACKWARD, admitted=cap),
                "1F1B": pipedream(4, in_flight=in_flight).take(minibatches),
            }
            busy = {
                name: utilisation(simulate(each, stages), STRAIGHT, max(CAPS))
                for name, each in tables.items()
            }
            rows.append(busy | {"cap": f"at most {cap} in flight"})
    return pd.DataFrame(rows)


def _worse_and_better(busy: pd.DataFrame) -> tuple[int, int]:
    gain = busy["backward first"] - busy["1F1B"]
    return int((gain < -0.001).sum()), int((gain > 0.001).sum())


def backward_first_figure(busy: pd.DataFrame) -> go.Figure:
    """Draw :func:`backward_first`."""
    worse, _ = _worse_and_better(busy)
    title = f"Backward first leaves machines idle in {worse} of {len(busy)} unequal pipelines"
    axes, label = ("1F1B", "backward first", "cap"), "busy share in steady state, simulated"
    return plots.points(busy, *axes, title=title, label=label, diagonal=True)


def backward_first_finding(busy: pd.DataFrame) -> Finding:
    """Return the means of :func:`backward_first`, at the cap that says least for 1F1B."""
    means = busy.groupby("cap", sort=False)[["backward first", "1F1B"]].mean()
    least = (means["1F1B"] - means["backward first"]).idxmin()
    told = []
    for cap, own in busy.groupby("cap", sort=False):
        worse, better = _worse_and_better(own)
        first, ours = means.loc[cap]
        told.append(
            f"{cap}: {first:.4f} and {ours:.4f}, worse than 1F1B in {worse}, better in {better}"
        )
    note = (
        f"means over random unequal pipelines, the same cap for both: {'; '.join(told)}; judged at "
        "the cap that says least for 1F1B"
    )
    value = [float(mean) for mean in means.loc[least]]
    return Finding.simulated("pipedream-backward-first-idle", value, note, "backward_first.svg")
