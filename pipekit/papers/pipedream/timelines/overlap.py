"""Figure 4: is communication hidden under compute, and with how many minibatches in flight?"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import pandas as pd
import plotly.graph_objects as go

from pipekit.clusters import Cluster, flat
from pipekit.clusters.traffic import Traffic
from pipekit.emulation import emulate
from pipekit.papers.drawing import rows_figure
from pipekit.papers.findings import Finding
from pipekit.papers.pipedream.cause_names import TOO_FEW_IN_FLIGHT
from pipekit.papers.pipedream.steady_state import (
    seconds_a_minibatch,
    steady,
    with_links_as_stages,
)
from pipekit.papers.pipedream.timelines.start_up import STRAIGHT, one_layer_stages
from pipekit.papers.timelines import busy_s, passes_of
from pipekit.schedules import Op, Schedule, Task, lower, pipedream
from pipekit.simulation import simulate
from pipekit.traces import TRANSFERS, Trace

NOAM, LINKS_AS_STAGES = "NOAM", "links as stages"
MORE = with_links_as_stages(STRAIGHT)
"""Minibatches in flight on each stage if each link were one more stage."""

ADMISSIONS: Mapping[str, Sequence[int] | None] = {NOAM: None, LINKS_AS_STAGES: MORE}

MARGIN = 2
"""How much longer the runs fill and drain than for NOAM in flight; see :func:`.window`."""

MESSAGE_BYTES = 1e6


@dataclass(frozen=True)
class Overlap:
    """Four equal stages with messages that take a share of the compute.

    ``table`` has a row for each admission and share: how much of the links' time a minibatch takes
    longer by ("exposed") and how much of it lies under compute ("hidden"). ``runs`` are the
    emulated trace and its messages, by admission and share; ``pass_s`` a stage's forward and
    backward together.
    """

    table: pd.DataFrame
    runs: Mapping[tuple[str, float], tuple[Trace, pd.DataFrame]]
    pass_s: float

    def machine(self, share: float) -> tuple[go.Figure, pd.DataFrame]:
        """Return Figure 4, machine 1 in steady state for both admissions, and its numbers."""
        by = self.table.set_index(["in flight", "on links / compute"])["hidden (emulated)"]
        machines, titles = [], []
        for name in ADMISSIONS:
            run, messages = self.runs[name, share]
            start, _, _ = steady(run, STRAIGHT, MARGIN)
            window = start, start + 6 * self.pass_s
            machines.append(machine_and_links(run, messages, 1, window))
            machines[-1].frame[["start_s", "end_s"]] -= start
            titles.append(
                f"Machine 1, in flight: {name}; {by[name, share]:.0%} of the time on links is "
                "under compute"
            )
        named = zip(ADMISSIONS, machines, strict=True)
        numbers = pd.concat([machine.frame.assign(in_flight=name) for name, machine in named])
        return machine_figure(machines, titles), numbers

    def findings(self, share: float, slow_share: float) -> list[Finding]:
        """Return whether communication is hidden where links keep up and where they do not."""
        by = self.table.set_index(["in flight", "on links / compute"])
        exposed, hidden = by["exposed (emulated)"], by["hidden (emulated)"]
        computed = by["hidden (simulated)"]
        cause = (
            "NOAM counts no time on links (3.2): with equal stages the round trip of a minibatch "
            "is longer than NOAM minibatches. With "
            f"{' '.join(map(str, MORE))} in flight in place of 4 3 2 1 (each link one more stage): "
        )
        left = (
            ", ".join(f"{exposed[LINKS_AS_STAGES, s]:.3f}" for s in (share, slow_share))
            + " exposed (emulated), "
            f"{by['exposed (simulated)'][LINKS_AS_STAGES, share]:.3f} (simulated)"
        )
        under = (
            f"{hidden[LINKS_AS_STAGES, share]:.3f} hidden (emulated); simulated: "
            f"{computed[NOAM, share]:.3f} and {computed[LINKS_AS_STAGES, share]:.3f}"
        )
        claim, other = "pipedream-abstract-perfect-overlap", "pipedream-fig4-overlap-timeline"
        both, more = (
            [float(exposed[name, s]) for s in (share, slow_share)]
            for name in (NOAM, LINKS_AS_STAGES)
        )
        own = float(hidden[NOAM, share])
        found = [
            (Finding.emulated(claim, both, cause + left, "figure4.svg"), more),
            (
                Finding.emulated(other, own, cause + under, "figure4.svg"),
                float(hidden[LINKS_AS_STAGES, share]),
            ),
        ]
        changed = "each link counts as one more stage"
        return [
            each.because(TOO_FEW_IN_FLIGHT, value, "emulated", changed) for each, value in found
        ]


def overlap(pass_s: float, shares: Sequence[float], minibatches: int) -> Overlap:
    """Emulate and simulate four equal stages on links of several speeds, for both admissions.

    A stage's backward takes ``pass_s``, its forward half of that; its two messages are on the links
    for each of ``shares`` of its compute.
    """
    whole_s = pass_s / 2 + pass_s
    passes = one_layer_stages([(pass_s / 2, pass_s)] * 4, output_bytes=MESSAGE_BYTES)
    rows, runs = [], {}
    tables = {
        name: pipedream(4, in_flight=many).take(minibatches) for name, many in ADMISSIONS.items()
    }
    free = {name: emulate(table, passes).trace for name, table in tables.items()}
    for share in shares:
        cluster = links_taking(share, whole_s)
        for name, table in tables.items():
            run = emulate(table, passes, cluster=cluster).trace
            computed = simulate(table, passes, cluster=cluster)
            assert computed.transfers is not None  # with a cluster there always are
            messages = link_times(run, cluster, table)
            runs[name, share] = run, messages
            run_s, free_s, computed_s = (
                seconds_a_minibatch(trace, STRAIGHT, MARGIN)
                for trace in (run, free[name], computed)
            )
            rows.append(
                {
                    "in flight": name,
                    "on links / compute": share,
                    "exposed (emulated)": 1 - free_s / run_s,
                    "exposed (simulated)": 1 - whole_s / computed_s,
                    "hidden (emulated)": hidden_fraction(run, messages, STRAIGHT),
                    "hidden (simulated)": hidden_fraction(computed, computed.transfers, STRAIGHT),
                }
            )
    return Overlap(pd.DataFrame(rows), runs, whole_s)


def links_taking(share: float, whole_s: float) -> Cluster:
    """Return links on which both messages of a stage take a share of its ``whole_s`` of compute."""
    return flat(4, 2 * MESSAGE_BYTES / (share * whole_s))


LINK_LOOKS = {"activation": "FORWARD", "gradient": "BACKWARD", "weights": "UPDATE"}
"""A message has the colour of what makes it."""


def link_times(trace: Trace, cluster: Cluster, schedule: Schedule) -> pd.DataFrame:
    """Return when each message of an emulated run was on its link, as ``Trace.transfers`` does.

    The engine sends a message when its pass ends and keeps it back as long as the cluster's links
    take; here the same links serve the same messages in the same order.
    """
    sends = {step.task: step.sends for steps in lower(schedule) for step in steps.head}
    traffic, rows, flows = Traffic(cluster), [], []
    for row in passes_of(trace).sort_values("end_s").itertuples():
        traffic.run_until(row.end_s)
        for _, to in sends[Task(Op[row.op], row.stage, row.microbatch, row.version)]:
            flows.append(traffic.send(row.worker, to, row.bytes, row.end_s))
            purpose = "activation" if row.op == "FORWARD" else "gradient"
            rows.append((row.worker, to, purpose, row.stage, row.microbatch, row.bytes))
    traffic.run_until(math.inf)
    frame = pd.DataFrame(rows, columns=[name for name in TRANSFERS if name[-2:] != "_s"])
    times = {"start_s": [flow.start for flow in flows], "end_s": [flow.end for flow in flows]}
    return frame.assign(**times)[TRANSFERS]


def hidden_fraction(trace: Trace, transfers: pd.DataFrame, replicas: Sequence[int]) -> float:
    """Return the share of the steady state's time on links in which their machine computes.

    A message counts once for the machine that sends it and once for the one that receives it.
    """
    start, end, _ = steady(trace, replicas, MARGIN)
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
