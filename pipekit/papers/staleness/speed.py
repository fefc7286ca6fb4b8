"""What each method of the sweep takes on the papers' machines: seconds, and bytes (simulated).

All make an update of equally many samples.  Methods with microbatches cut them; PipeDream and what
is built on it pass them through whole, since it updates after each minibatch.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

import pandas as pd

from pipekit import schedules
from pipekit.clusters import Cluster, named
from pipekit.papers.costs import published
from pipekit.papers.staleness.comparison import OWN, arm_name, summary
from pipekit.papers.staleness.methods import METHODS, PACI_MICROBATCHES, SYNC
from pipekit.papers.timelines import backward_ends, mean_interval
from pipekit.planning.sweep import block_balance
from pipekit.plans import Plan
from pipekit.profiling import Profile
from pipekit.schedules import Schedule
from pipekit.simulation import simulate

BATCHES = 3
"""Of a simulated run, besides those that fill the pipeline."""


@dataclass(frozen=True)
class Machines:
    """A model on a cluster: one pipeline.

    Attributes:
        model: a name of :data:`pipekit.models.PUBLISHED`, in float32.
        cluster: a name of :data:`pipekit.clusters.NAMED`.
        stages: of the pipeline, one worker each.
        rows: samples of an update.
        microbatches: into which methods that have some cut them; at least ``stages``.
        optimizer_states: tensors of a parameter's size that the optimizer keeps, 2 for Adam.
        recompute: whether a stage keeps only what it received.
    """

    model: str = "gpt-1.3B"
    cluster: str = "2bw-v100"
    stages: int = 4
    rows: int = 32
    microbatches: int = 8
    optimizer_states: float = 2
    recompute: bool = True

    def point(self, method: str) -> dict[str, float]:
        """Return a method's ``seconds`` of an update, and its ``memory_bytes``.

        The bytes are those of the worker that needs most.

        Raises:
            ValueError: there are too few microbatches or rows, or the cluster is too small.
        """
        schedule, parts = self._schedule(method)
        if self.rows % parts:
            raise ValueError(
                f"{self.rows} samples an update cannot be cut into {parts} equal microbatches: "
                f"use a multiple"
            )
        machines = named(self.cluster)
        profile = _one_row(self.model, machines)
        rows = self.rows // parts
        plan = Plan.by_hand(
            block_balance(profile, self.stages),
            rows=rows,
            recompute="always" if self.recompute else "never",
        )
        mitigation = METHODS[method].mitigation
        trace = simulate(
            schedule,
            profile.scaled(rows),
            plan,
            machines,
            optimizer_states=self.optimizer_states,
            mitigation=mitigation and mitigation(1),
        )
        assert trace.memory is not None
        ends = backward_ends(trace, self.stages - 1, parts)
        return {
            "seconds": mean_interval(ends, len(ends) - BATCHES, len(ends) - 1),
            "memory_bytes": float(max(trace.memory.peak_bytes)),
        }

    def _schedule(self, method: str) -> tuple[Schedule, int]:
        """Return a method's table, and the microbatches of its batches."""
        n, m, batches = self.stages, self.microbatches, self.stages + BATCHES
        if method == SYNC:
            return schedules.flush(n, m, batches), m
        if METHODS[method].equation == "2bw":
            # Synchronous training first is over before long.
            return schedules.two_bw(n, m, batches), m
        parts = PACI_MICROBATCHES if method == "paci" else 1
        return METHODS[method].schedule(n, batches), parts


def points(machines: Machines, trainings: pd.DataFrame, proxy: str, optimizer: str) -> pd.DataFrame:
    """Return all measured methods at this depth as points: a row each.

    Columns: method, arm, ``seconds`` of a sample (simulated), ``loss`` at the end and ``std`` over
    seeds (measured on the proxy, each at its own rate), ``memory_bytes`` (simulated).
    """
    table = summary(trainings)
    rows = table[
        (table["proxy"] == proxy) & (table["optimizer"] == optimizer) & (table["at"] == OWN)
    ]
    found = []
    for row in rows.itertuples():
        if METHODS[row.method].stages or row.stages == machines.stages:
            point = machines.point(row.method)
            found.append(
                {
                    "method": row.method,
                    "arm": arm_name(row.method, row.stages),
                    "seconds": point["seconds"] / machines.rows,
                    "loss": row.loss,
                    "std": row.std,
                    "memory_bytes": point["memory_bytes"],
                }
            )
    columns = ["method", "arm", "seconds", "loss", "std", "memory_bytes"]
    return pd.DataFrame(found, columns=columns).assign(label="simulated; loss measured")


def update_seconds(machines: Mapping[int, Machines], trainings: pd.DataFrame) -> pd.Series:
    """Return the simulated seconds of an update, by method and the stages it was trained with.

    Args:
        machines: by the pipeline's depth.  Methods whose delay does not depend on it take the
            first one's.
        trainings: whose methods.
    """
    first = next(iter(machines.values()))
    found = {}
    for method, stages in trainings[["method", "stages"]].drop_duplicates().itertuples(index=False):
        on = first if METHODS[method].stages else machines.get(stages)
        if on is not None:
            found[method, stages] = on.point(method)["seconds"]
    return pd.Series(found, name="seconds")


@cache
def _one_row(model: str, cluster: Cluster) -> Profile:
    return published(model, 1, cluster.device)
