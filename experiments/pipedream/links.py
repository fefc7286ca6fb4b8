"""When messages were on their links, and how much of that time lies under compute (Figure 4)."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pandas as pd
import plotly.graph_objects as go
from torch import Tensor

from experiments.pipedream.steady_state import steady
from experiments.study.figures import rows_figure
from experiments.study.traces import busy_s
from pipekit.clusters import Cluster
from pipekit.clusters.traffic import Traffic
from pipekit.engine.observers.observer import Observer
from pipekit.engine.transport import FlatBucket, PartKey
from pipekit.schedules import Message, Op, Schedule, Step, Task, lower
from pipekit.traces import TRANSFERS, Trace
from pipekit.trees import Tree, leaves

LINK_LOOKS = {"activation": "FORWARD", "gradient": "BACKWARD", "weights": "UPDATE"}
"""A message has the colour of what makes it."""


class MessageCounter(Observer):
    """Counts everything that workers send one another, in ``seen``, by its purpose."""

    def __init__(self) -> None:
        self.seen: Counter[str] = Counter()

    def sent(
        self, worker: int, step: Step, message: Message, receiver: int, tree: Tree, size: int
    ) -> None:
        """Count a message between stages; one without tensors is control."""
        self.seen[message.payload.value if leaves(tree) else "control"] += 1

    def part_sent(self, worker: int, receiver: int, key: PartKey, part: FlatBucket) -> None:
        """Count a part of a sum of gradients."""
        self.seen["weights"] += 1

    def values_summed(self, worker: int, update: int, values: Tensor) -> None:
        """Count what decides on an update."""
        self.seen["control"] += 1


def link_times(trace: Trace, cluster: Cluster, schedule: Schedule) -> pd.DataFrame:
    """Return when each message of an emulated run was on its link, as ``Trace.transfers`` does.

    The engine sends a message when its pass ends and keeps it back as long as the cluster's links
    take; here the same links serve the same messages in the same order.
    """
    sends = {step.task: step.sends for steps in lower(schedule) for step in steps.head}
    traffic, rows, flows = Traffic(cluster), [], []
    for row in trace.passes.sort_values("end_s").itertuples():
        traffic.run_until(row.end_s)
        for _, to in sends[Task(Op[row.op], row.stage, row.microbatch, row.version)]:
            flows.append(traffic.send(row.worker, to, row.bytes, row.end_s))
            purpose = "activation" if row.op == "FORWARD" else "gradient"
            rows.append((row.worker, to, purpose, row.stage, row.microbatch, row.bytes))
    traffic.run_until(math.inf)
    frame = pd.DataFrame(rows, columns=[name for name in TRANSFERS if name[-2:] != "_s"])
    times = {"start_s": [flow.start for flow in flows], "end_s": [flow.end for flow in flows]}
    return frame.assign(**times)[TRANSFERS]


def hidden_fraction(
    trace: Trace, transfers: pd.DataFrame, replicas: Sequence[int], margin: int = 1
) -> float:
    """Return the share of the steady state's time on links in which their machine computes.

    A message counts once for the machine that sends it and once for the one that receives it;
    ``margin`` is that of :func:`.steady_state.window`.
    """
    start, end, _ = steady(trace, replicas, margin)
    within = transfers[(transfers["start_s"] >= start) & (transfers["end_s"] <= end)]
    hidden = total = 0.0
    for machine, own in trace.passes.groupby("worker"):
        for side in ("source", "destination"):
            for row in within[within[side] == machine].itertuples():
                hidden += busy_s(own, row.start_s, row.end_s)
                total += row.end_s - row.start_s
    return hidden / total


def machine_and_links(
    trace: Trace, transfers: pd.DataFrame, machine: int, window: tuple[float, float]
) -> Trace:
    """Return what a machine computes (row 0), sends (1) and receives (2), begun in a window."""
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
