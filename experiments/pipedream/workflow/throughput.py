"""Whether the slowest stage sets a plan's throughput (PipeDream, section 3.2), simulated."""

from collections.abc import Sequence
from typing import Any

import pandas as pd
import plotly.graph_objects as go

from experiments.pipedream.cause_names import LINK_TIME, TOO_FEW_IN_FLIGHT
from experiments.pipedream.settings import ROWS
from experiments.pipedream.steady_state import (
    seconds_a_minibatch,
    window,
    with_links_as_stages,
)
from experiments.recorded.findings import Finding
from experiments.study.costs import published
from pipekit import plots
from pipekit.clusters import TITAN_X, V100, Cluster, pipedream_a, pipedream_b
from pipekit.planning import pipedream
from pipekit.profiling import Profile
from pipekit.schedules import Schedule
from pipekit.schedules import pipedream as schedule
from pipekit.simulation import simulate

MARGIN = 3
"""How much longer runs fill and drain than NOAM in flight asks for; see :func:`.window`."""

IN_FLIGHT = ["PipeDream", "free links", "links as stages"]
"""The columns of throughputs."""


def throughput_row(
    network: str, profile: Profile, cluster: Cluster, replicate: bool, rounds: int = 24
) -> dict[str, Any]:
    """Simulate a plan; return its throughput times A, 1 where the slowest stage decides.

    "PipeDream" as published; "free links": the same plan where links cost nothing; "links as
    stages": in flight as many as if each link were one more stage. The steady state has so many
    minibatches at least, in whole ``rounds`` of the round robin.
    """
    plan = pipedream(profile, cluster, replicate=replicate)
    count = window(plan.replicas, rounds, MARGIN).minibatches
    more = with_links_as_stages(plan.replicas)

    def rate(table: Schedule, links: Cluster | None) -> float:
        trace = simulate(table, profile, plan, links)
        return plan.predicted_s / seconds_a_minibatch(trace, plan.replicas, MARGIN)

    published = schedule(plan.replicas).take(count)
    return {
        "network": network,
        "cluster": cluster.name,
        "machines": cluster.workers,
        "plan": plan.config,
        "A (ms)": 1e3 * plan.predicted_s,
        "kind": "replicated" if max(plan.replicas) > 1 else "straight",
        "PipeDream": rate(published, cluster),
        "free links": rate(published, None),
        "links as stages": rate(schedule(plan.replicas, in_flight=more).take(count), cluster),
        "label": "simulated",
    }


def throughputs(networks: Sequence[str], machines: Sequence[int]) -> pd.DataFrame:
    """Return :func:`throughput_row` for published networks, with and without replication."""
    rows = [
        throughput_row(name, published(name, ROWS[name], device), cluster(workers=count), replicate)
        for name in networks
        for device, cluster in {TITAN_X: pipedream_a, V100: pipedream_b}.items()
        for count in machines
        for replicate in (False, True)
    ]
    return pd.DataFrame(rows).drop_duplicates(["network", "cluster", "plan"])


def points(table: pd.DataFrame) -> pd.DataFrame:
    """Return the plans' simulated ms a minibatch beside A, a row a plan and one of IN_FLIGHT."""
    own = ["network", "plan", "A (ms)", "kind"]
    long = table.melt(own, IN_FLIGHT, "in flight", "throughput x A")
    long["simulated (ms)"] = long["A (ms)"] / long["throughput x A"]
    return long


def figure(table: pd.DataFrame) -> go.Figure:
    """Draw :func:`points`."""
    title, axes = "NOAM is too few where links take time", ("A (ms)", "simulated (ms)", "in flight")
    drawn = points(table)
    return plots.points(drawn, *axes, title=title, label="simulated", diagonal=True, log=True)


def finding(table: pd.DataFrame) -> Finding:
    """Return the throughputs times A that are farthest from 1, of straight and replicated plans."""

    def farthest(column: str, kind: str) -> float:
        values = table.loc[table["kind"] == kind, column]
        return float(values[(values - 1).abs().idxmax()])

    close = ((table["PipeDream"] - 1).abs() < 0.02).sum()
    note = (
        f"{len(table)} plans for the paper's networks and clusters, {close} of them within 2 %. "
        "Straight: NOAM counts no time on links, so that a minibatch comes back too late; with in "
        f"flight one more a link {farthest('links as stages', 'straight'):.3f}. Replicated: T "
        "counts synchronisation as hidden under compute, but an update waits for the sum over the "
        f"round, and the replicas for one another ({farthest('free links', 'replicated'):.3f} with "
        "free links)"
    )
    worst, more, free = (
        [farthest(column, kind) for kind in ("straight", "replicated")]
        for column in ("PipeDream", "links as stages", "free links")
    )
    claim = "pipedream-planner-slowest-stage-objective"
    return (
        Finding.simulated(claim, worst, note, "throughput.svg")
        .because(TOO_FEW_IN_FLIGHT, more, changed="each link counts as one more stage")
        .because(LINK_TIME, free, changed="free links")
    )
