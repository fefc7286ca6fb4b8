"""Messages on their links, under the compute of their machines (PipeDream, Figures 2 and 4)."""

from collections.abc import Sequence
from dataclasses import replace

import pandas as pd
import plotly.graph_objects as go

from pipekit.clusters import Cluster
from pipekit.clusters.traffic import Traffic
from pipekit.papers.drawing import rows_figure
from pipekit.papers.pipedream.steady_state import steady
from pipekit.papers.timelines import busy_s, passes_of
from pipekit.schedules import Op, Schedule, Task, lower
from pipekit.traces import TRANSFERS, Trace

LINK_LOOKS = {"activation": "FORWARD", "gradient": "BACKWARD", "weights": "UPDATE"}
"""A message has the colour of what makes it."""


def link_times(trace: Trace, cluster: Cluster, schedule: Schedule) -> pd.DataFrame:
    """Return when each message of an emulated run was on its link, as ``Trace.transfers`` does.

    The engine sends a message when its pass ends and keeps it back as long as the cluster's links
    take; here the same links serve the same messages in the same order.
    """
    sends = {step.task: step.sends for steps in lower(schedule) for step in steps}
    traffic, rows = Traffic(cluster), []
    for row in passes_of(trace).sort_values("end_s").itertuples():
        for _, to in sends[Task(Op[row.op], row.stage, row.microbatch, row.version)]:
            sent = traffic.send(row.worker, to, row.bytes, row.end_s)
            purpose = "activation" if row.op == "FORWARD" else "gradient"
            rows.append((row.worker, to, purpose, row.stage, row.microbatch, *sent[:2], row.bytes))
    return pd.DataFrame(rows, columns=TRANSFERS)


def hidden_fraction(trace: Trace, transfers: pd.DataFrame, replicas: Sequence[int]) -> float:
    """Return the share of the steady state's time on links in which their machine computes.

    A message counts once for the machine that sends it and once for the one that receives it.
    """
    start, end, _ = steady(trace, replicas)
    within = transfers[(transfers["start_s"] >= start) & (transfers["end_s"] <= end)]
    passes = passes_of(trace)
    hidden = total = 0.0
    for machine in range(trace.workers):
        own = passes[passes["worker"] == machine]
        for side in ("source", "destination"):
            for row in within[within[side] == machine].itertuples():
                hidden += busy_s(own, row.start_s, row.end_s)
                total += row.end_s - row.start_s
    return hidden / total


def machine_and_links(
    trace: Trace, transfers: pd.DataFrame, machine: int, window: tuple[float, float]
) -> Trace:
    """Return one machine's passes (row 0), what it sends (row 1) and what it receives (row 2).

    Only those that begin in the window, for a picture like Figures 2 and 4.
    """
    rows = [trace.frame[trace.frame["worker"] == machine].assign(worker=0)]
    for row, side in enumerate(("source", "destination"), start=1):
        there = transfers[transfers[side] == machine]
        rows.append(there.assign(worker=row, op=there["purpose"].map(LINK_LOOKS), version=0))
    frame = pd.concat(rows)[trace.frame.columns]
    frame = frame[frame["start_s"].between(*window)]
    return replace(trace, frame=frame, workers=len(rows), transfers=None, memory=None)


def machine_figure(machines: Sequence[Trace], titles: Sequence[str]) -> go.Figure:
    """Draw what :func:`machine_and_links` returns, one under another; titles without the label."""
    return rows_figure(machines, titles, ["computes", "sends", "receives"])
