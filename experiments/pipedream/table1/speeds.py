"""Steady-state speeds of a plan: simulated, and emulated with time running faster."""

from collections.abc import Callable
from typing import NamedTuple

import pandas as pd

from experiments.pipedream.steady_state import seconds_a_minibatch, window
from experiments.pipedream.table1.traffic import Sent, sent
from experiments.study.costs import emulate_at_pace
from experiments.study.rounds import Emulated, emulated
from pipekit.clusters import Cluster
from pipekit.engine import Run
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


def data_parallel(profile: Profile, workers: int) -> Plan:
    """Return data parallelism as a plan: one stage on all workers (PipeDream, section 4)."""
    return Plan.by_hand([len(profile)], rows=profile.rows, replicas=[workers])


def overhead(speedup: float, workers: int) -> float:
    """Return the part of the time (0 to 1) that workers do not compute."""
    return 1 - speedup / workers


def overhead_removed(speedup: float, bsp: float, workers: int) -> float:
    """Return the part (1 if all) of BSP's communication overhead that a plan has not."""
    return 1 - overhead(speedup, workers) / overhead(bsp, workers)


class Result(NamedTuple):
    """A plan, simulated and emulated.

    Seconds a minibatch are of the profile's time, in steady state: ``simulated_s`` over
    :data:`SIMULATED` minibatches, ``timed`` over those that were emulated.  Bytes a minibatch are
    ``sent`` by the engine's counters and ``closed`` by the closed form; ``uneven`` is the most that
    a worker sent and received more or less than the mean.
    """

    plan: Plan
    simulated_s: float
    timed: Emulated
    sent: Sent
    closed: Sent
    uneven: float

    @property
    def seconds(self) -> float:
        """Seconds a minibatch, emulated if the emulations count."""
        return self.timed.seconds

    @property
    def excess(self) -> float:
        """The engine's bytes a minibatch minus the closed form's."""
        return self.sent.total - self.closed.total

    def only(self, number: int) -> "Result":
        """Return the same with one of its emulations."""
        return self._replace(timed=self.timed.only(number))

    @property
    def unrun(self) -> "Result":
        """The same as if nothing had been emulated; bytes do not hang on the clock."""
        return self._replace(timed=self.timed.unrun)


def run(
    profile: Profile,
    plan: Plan,
    cluster: Cluster,
    minibatches: int,
    faster: float,
    repeats: int = 1,
    method: Method = pipelined,
) -> Result:
    """Simulate a plan, and emulate it ``repeats`` times in time that runs ``faster``."""
    count = window(plan.replicas, minibatches).minibatches
    table, runs = method(plan).take(count), list[Run]()

    def emulate(pace: float) -> float:
        runs.append(emulate_at_pace(table, profile, plan, cluster, faster * pace))
        return seconds_a_minibatch(runs[-1].trace, plan.replicas)

    expected = seconds_a_minibatch(simulate(table, profile, plan, cluster), plan.replicas)
    timed = emulated(emulate, expected, repeats)
    traffic = runs[0].traffic.assign(bytes=runs[0].traffic["bytes"] / count)
    weights = traffic["purpose"] == "weights"
    return Result(
        plan,
        simulated_seconds(profile, plan, cluster, method),
        timed,
        Sent(
            float(traffic.loc[weights, "bytes"].sum()), float(traffic.loc[~weights, "bytes"].sum())
        ),
        sent(profile, plan),
        _uneven(traffic[weights]),
    )


def _uneven(traffic: pd.DataFrame) -> float:
    ends = pd.concat([traffic.groupby(end)["bytes"].sum() for end in ("source", "destination")])
    each = ends.groupby(level=0).sum()
    return float((each - each.mean()).abs().max()) if len(each) else 0.0
