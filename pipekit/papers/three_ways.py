"""A schedule three ways: as its table says, in seconds, and really run."""

from collections.abc import Mapping
from typing import NamedTuple

from pipekit.clusters import Cluster
from pipekit.emulation import emulate
from pipekit.plans import Plan
from pipekit.profiling import Profile
from pipekit.schedules import Op, Schedule
from pipekit.simulation import simulate
from pipekit.traces import Trace


class ThreeWays(NamedTuple):
    """One schedule's traces.

    Attributes:
        slots: in time slots, exact.
        simulated: in seconds, computed.
        emulated: run by the engine, with waits in place of compute.
    """

    slots: Trace
    simulated: Trace
    emulated: Trace

    @property
    def titles(self) -> list[str]:
        """What each picture shows, under the schedule's name."""
        return [f"{self.slots.name}, {what}" for what in ("the table", "in seconds", "run")]


def run_three_ways(
    schedule: Schedule,
    profile: Profile,
    plan: Plan | None = None,
    cluster: Cluster | None = None,
    slots: Mapping[Op, float] | None = None,
) -> ThreeWays:
    """Return a schedule in time slots, simulated and emulated.

    Args:
        schedule: the table.
        profile: what each layer costs.
        plan: which layers each stage has; None: equally many.
        cluster: the links; None: they cost nothing.
        slots: of each op; None: a forward takes one and a backward two.
    """
    return ThreeWays(
        Trace.from_schedule(schedule) if slots is None else Trace.from_schedule(schedule, slots),
        simulate(schedule, profile, plan, cluster),
        emulate(schedule, profile, plan, cluster).trace,
    )
