"""How fast a plan is in steady state (simulated), and the schedules to run it by."""

from collections.abc import Callable

from experiments.pipedream.steady_state import seconds_a_minibatch, window
from pipekit.clusters import Cluster
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

    NOAM minibatches (section 3.2) are as many as can be at work: none is left over to travel, or to
    wait for the others of its round.  For study: weights get as much staler.
    """
    counts = [2 * count for count in optimal_in_flight(plan.replicas)]
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
