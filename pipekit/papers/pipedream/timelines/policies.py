"""Unequal stages, and the policies that section 3.3 argues against: forward or backward first."""

import random
from collections.abc import Sequence

import pandas as pd
import plotly.graph_objects as go

from pipekit import plots
from pipekit.papers.findings import Finding
from pipekit.papers.pipedream.steady_state import clock_utilisation, idle_error, utilisation
from pipekit.papers.pipedream.timelines.start_up import STRAIGHT, one_layer_stages
from pipekit.papers.pipedream.timelines.tables import by_preference
from pipekit.schedules import Op, Schedule, check, pipedream
from pipekit.simulation import simulate
from pipekit.traces import Trace

LENGTHS = [(1, 2)] * 4
"""Time units of a forward and a backward of each stage, where the policies are drawn."""


def unequal_stages(pipelines: int, seed: int) -> pd.DataFrame:
    """Simulate random unequal pipelines, and compare their idle share with the closed form.

    A row a pipeline: idle shares by 1 - mean / max of the stages and simulated, "stages", "error"
    (relative), and "error by the clock".
    """
    draw, rows = random.Random(seed), []
    for _ in range(pipelines):
        stages = draw.randint(2, 8)
        times = [(draw.uniform(1, 5), draw.uniform(1, 9)) for _ in range(stages)]
        trace = simulate(pipedream(stages, 9 * stages), one_layer_stages(times))
        idle = 1 - utilisation(trace, [1] * stages)
        by_the_clock = 1 - clock_utilisation(trace, [1] * stages)
        whole = [forward + backward for forward, backward in times]
        rows.append(
            {
                "idle share, 1 - mean / max": 1 - sum(whole) / stages / max(whole),
                "idle share, simulated": idle,
                "stages": f"{stages} stages",
                "error": idle_error(whole, idle),
                "error by the clock": idle_error(whole, by_the_clock),
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
    clock = table["error by the clock"]
    note = (
        "busy with the minibatches that end in the window, so that it is the pace that is tested; "
        f"by the clock {clock.max():.3f} at worst, above 1 % in {(clock > 0.01).sum()} of "
        f"{len(clock)}: a stage nearly as slow as the slowest gets ahead of it for a long time, "
        "not steady in so short a run"
    )
    most = table["error"].max()
    return Finding.simulated("pipedream-intro-bad-partition-idle", most, note, "bad_partition.svg")


def policies() -> list[Schedule]:
    """Return forward first, backward first and 1F1B for 12 minibatches on four equal stages."""
    return [
        by_preference(LENGTHS, 12, Op.FORWARD),
        by_preference(LENGTHS, 12, Op.BACKWARD, admitted=4),
        pipedream(4, 12),
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


def backward_first(pipelines: int, minibatches: int, seed: int) -> pd.DataFrame:
    """Simulate backward first and 1F1B on random pipelines of four unequal stages.

    A row a pipeline, the busy share in steady state: "backward first" with at most 4 minibatches
    admitted, "1F1B", and "unlimited", backward first that admits all.
    """
    draw, rows = random.Random(seed), []
    for _ in range(pipelines):
        lengths = [(draw.randint(1, 4), draw.randint(1, 8)) for _ in range(4)]
        tables = {
            "backward first": by_preference(lengths, minibatches, Op.BACKWARD, admitted=4),
            "1F1B": pipedream(4, minibatches),
            "unlimited": by_preference(lengths, minibatches, Op.BACKWARD),
        }
        traces = {name: simulate(each, one_layer_stages(lengths)) for name, each in tables.items()}
        rows.append({name: utilisation(trace, STRAIGHT) for name, trace in traces.items()})
    return pd.DataFrame(rows).assign(pipelines="4 unequal stages")


def _worse_and_better(busy: pd.DataFrame) -> tuple[int, int]:
    gain = busy["backward first"] - busy["1F1B"]
    return int((gain < -0.001).sum()), int((gain > 0.001).sum())


def backward_first_figure(busy: pd.DataFrame) -> go.Figure:
    """Draw :func:`backward_first`."""
    worse, _ = _worse_and_better(busy)
    title = f"Backward first leaves machines idle in {worse} of {len(busy)} unequal pipelines"
    axes, label = ("1F1B", "backward first", "pipelines"), "busy share in steady state, simulated"
    return plots.points(busy, *axes, title=title, label=label, diagonal=True)


def backward_first_finding(busy: pd.DataFrame) -> Finding:
    """Return the mean busy shares of :func:`backward_first`."""
    worse, better = _worse_and_better(busy)
    note = (
        f"means over {len(busy)} random unequal pipelines with at most 4 minibatches admitted: "
        f"worse than 1F1B in {worse}, better in {better}, else equal, as with equal stages. With "
        f"unlimited admission, and so more in flight than 1F1B: {busy['unlimited'].mean():.4f}"
    )
    means = [float(busy[name].mean()) for name in ("backward first", "1F1B")]
    return Finding.simulated("pipedream-backward-first-idle", means, note, "backward_first.svg")
