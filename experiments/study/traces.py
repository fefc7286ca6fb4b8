"""Timelines of one schedule in three ways, and what is asked of several traces."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

import pandas as pd

from pipekit.clusters import Cluster
from pipekit.emulation import emulate
from pipekit.plans import Plan
from pipekit.profiling import Profile
from pipekit.schedules import Op, Schedule
from pipekit.schedules.clock import PAPER_SLOTS
from pipekit.simulation import simulate
from pipekit.traces import Trace
from pipekit.traces.memory import Memory

EQUAL_SLOTS: Mapping[Op, float] = {Op.FORWARD: 1, Op.BACKWARD: 1, Op.UPDATE: 0}
"""Both passes take one time unit, as in GPipe's Figure 2 and PipeDream's Figures 3 and 8."""


class ThreeWays(NamedTuple):
    """One schedule's traces: in slots (exact), in seconds (simulated), really run (emulated)."""

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
    slots: Mapping[Op, float] = PAPER_SLOTS,
) -> ThreeWays:
    """Return a schedule in time slots, simulated and emulated.

    Without a plan stages have equally many layers; without a cluster links cost nothing; by default
    a forward takes one slot and a backward two.
    """
    return ThreeWays(
        Trace.from_schedule(schedule, slots),
        simulate(schedule, profile, plan, cluster),
        emulate(schedule, profile, plan, cluster).trace,
    )


def memory_of(trace: Trace) -> Memory:
    """Return what lay in the workers' memory, for a trace that has followed it.

    Simulated traces always have; a training's has with ``memory=True``.

    Raises:
        ValueError: it has not.
    """
    if trace.memory is None:
        raise ValueError(f"the memory of {trace.name} was not followed: train with memory=True")
    return trace.memory


def busy_s(events: pd.DataFrame, start: float, end: float) -> float:
    """Return how much of some events' time lies between two times, in the trace's unit."""
    clipped = events["end_s"].clip(start, end) - events["start_s"].clip(start, end)
    return float(clipped.sum())


def mean_interval(ends: Sequence[float], first: int, last: int) -> float:
    """Return the mean time from one end to the next, from ``ends[first]`` to ``ends[last]``."""
    return float(ends[last] - ends[first]) / (last - first)


def fastest_interval(ends: Sequence[float]) -> float:
    """Return the shortest time from one end to the next.

    What else runs on a machine can only make a batch slower.  The time before the first end, which
    also finds memory that was never touched, does not count.
    """
    return min(after - before for before, after in pairwise(ends))
