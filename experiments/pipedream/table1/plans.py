"""Plans of Table 1: how fast they are (simulated), what they send, and the best cut."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import combinations
from typing import NamedTuple

import numpy as np

from experiments.pipedream.steady_state import seconds_a_minibatch, window
from pipekit.clusters import Cluster
from pipekit.clusters.paths import all_reduce_bytes
from pipekit.planning.layer_ranges import LayerRanges
from pipekit.planning.objectives import Bytes, Cost, Seconds
from pipekit.plans import Plan
from pipekit.profiling import Profile
from pipekit.schedules import Schedule, model_parallel, optimal_in_flight, pipedream
from pipekit.simulation import simulate

Method = Callable[[Plan], Schedule]
"""A plan to its schedule, without end."""

SIMULATED = 200
"""Minibatches to be simulated in steady state: waits in a pipeline may repeat only after many."""

MARGIN = 3
"""How much longer simulated runs fill and drain: enough for twice as many minibatches in flight."""


def pipelined(plan: Plan) -> Schedule:
    """Return PipeDream's schedule for a plan."""
    return pipedream(plan.replicas)


def one_at_a_time(plan: Plan) -> Schedule:
    """Return model parallelism's schedule for a plan (section 5.3)."""
    return model_parallel(len(plan.stages))


def twice_in_flight(plan: Plan) -> Schedule:
    """Return PipeDream's schedule with twice as many minibatches in flight on every worker.

    NOAM minibatches (section 3.2) leave none over to travel, or to wait for the others of its
    round. For study: weights get as much staler. No worker waits for more than are admitted.
    """
    counts, admitted = list[int](), math.inf
    for count, width in zip(optimal_in_flight(plan.replicas), plan.replicas, strict=True):
        counts.append(int(min(2 * count, admitted // width)))
        admitted = min(admitted, counts[-1] * width)
    return pipedream(plan.replicas, in_flight=counts)


def compute_seconds(profile: Profile) -> float:
    """Return the seconds a minibatch on one machine, which has nothing to wait for."""
    return sum(layer.forward_s + layer.backward_s + layer.update_s for layer in profile.layers)


def simulated_seconds(
    profile: Profile,
    plan: Plan,
    cluster: Cluster | None,
    method: Method = pipelined,
    minibatches: int = SIMULATED,
) -> float:
    """Return the simulated seconds a minibatch in steady state; None: links are free."""
    table = method(plan).take(window(plan.replicas, minibatches, MARGIN).minibatches)
    return seconds_a_minibatch(simulate(table, profile, plan, cluster), plan.replicas, MARGIN)


def data_parallel(profile: Profile, workers: int) -> Plan:
    """Return data parallelism as a plan: one stage on all workers (PipeDream, section 4)."""
    return Plan.by_hand([len(profile)], rows=profile.rows, replicas=[workers])


class Sent(NamedTuple):
    """Bytes that all workers together send a minibatch, each counted once."""

    weights: float
    activations: float

    @property
    def total(self) -> float:
        return self.weights + self.activations


def sent(profile: Profile, plan: Plan) -> Sent:
    """Return the closed form of what a plan sends (section 3.2).

    In a round of m minibatches each of m replicas sends 2 (m - 1) / m |w| and receives as much:
    the paper's 4 (m - 1) / m |w| counts both.  A cut is passed by an activation and its gradient.
    """
    weights = sum(
        all_reduce_bytes(profile.stage(s.first, s.stop).parameter_bytes, s.replicas)
        for s in plan.stages
    )
    cuts = (profile.boundary_bytes(stage.first) for stage in plan.stages[1:])
    return Sent(weights, 2 * sum(cuts))


def reduction(ours: Sent, bsp: Sent, activations_once: bool = False) -> float:
    """Return by what part (0 to 1) less is sent than by data parallelism."""
    return 1 - (ours.total - ours.activations / 2 * activations_once) / bsp.total


def formula_speedup(workers: int, calibrated_on: tuple[int, float]) -> float:
    """Return BSP's speedup if traffic, 4 (m - 1) / m |w| a worker, were all; fitted on a row."""
    known, speedup = calibrated_on
    a_byte = (known / speedup - 1) * known / (known - 1)  # of computing time, for each |w| sent
    return workers / (1 + a_byte * (workers - 1) / workers)


def summed_late(profile: Profile, plan: Plan) -> tuple[Profile, Plan]:
    """Return a profile and its plan with a layer a stage: its sums begin after its backward."""
    layers = tuple(profile.stage(stage.first, stage.stop) for stage in plan.stages)
    alone = Plan.by_hand([1] * len(layers), rows=profile.rows, replicas=plan.replicas)
    return replace(profile, layers=layers), alone


def best_cut(
    profile: Profile, cluster: Cluster, replicas: Sequence[int], cost: Cost = "paper"
) -> Plan:
    """Return the plan with these replicas that the planner's cost model finds the fastest."""
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
