"""The best cut of a network for a published configuration (PipeDream, Table 1)."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations

import numpy as np

from pipekit.clusters import Cluster
from pipekit.planning.layer_ranges import LayerRanges
from pipekit.planning.objectives import Bytes, Cost, Seconds
from pipekit.plans import Plan
from pipekit.profiling import Profile
from pipekit.schedules import optimal_in_flight


def best_cut(
    profile: Profile, cluster: Cluster, replicas: Sequence[int], cost: Cost = "paper"
) -> Plan:
    """Return the plan with these replicas that the planner's cost model finds the fastest.

    It tries all cuts: a configuration as published says how many workers a stage has, not where it
    ends. The cluster has one level of links; if no cut fits its memory it is a ValueError.
    """
    (level,), spans, layers = cluster.levels, LayerRanges(profile), len(profile)
    objective = Seconds(
        spans, [level], cost, Bytes(spans, optimizer_states=1), cluster.device.memory_bytes
    )
    in_flight = optimal_in_flight(replicas)
    stages = [
        objective.replicated(objective.worker(passing), 0, count)
        for passing, count in zip(in_flight, replicas, strict=True)
    ]
    passing = objective.transfer(0)
    inner = np.array(list(combinations(range(1, layers), len(replicas) - 1)), dtype=int)
    edges = np.pad(inner, ((0, 0), (1, 1)), constant_values=(0, layers))  # [cuts, stages + 1]
    parts = [stage[edges[:, i], edges[:, i + 1]] for i, stage in enumerate(stages)]
    seconds = np.max([*parts, *(passing[cut] for cut in inner.T)], axis=0)
    best = int(seconds.argmin())
    if np.isinf(seconds[best]):
        raise ValueError(f"no cut for replicas {list(replicas)} fits the workers' memory")
    plan = Plan.by_hand(np.diff(edges[best]).tolist(), rows=profile.rows, replicas=replicas)
    return replace(plan, in_flight=in_flight[0], predicted_s=float(seconds[best]))
