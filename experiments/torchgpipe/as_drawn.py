"""What the papers' timelines have in common: how they are made, and what is asked of them."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

import pandas as pd

from pipekit.clusters import Cluster
from pipekit.emulation import emulate
from pipekit.plans import Plan
from pipekit.profiling import Profile
from pipekit.schedules import Op, Schedule, Task
from pipekit.schedules.time_slots import PAPER_SLOTS
from pipekit.simulation import simulate
from pipekit.traces import Trace
from pipekit.traces.memory import Memory

EQUAL_SLOTS: Mapping[Op, float] = {Op.FORWARD: 1, Op.BACKWARD: 1, Op.UPDATE: 0}
"""Both passes take one time unit, as in PipeDream's Figures 3 and 8."""


def as_drawn(stages: int, microbatches: int) -> Schedule:
    """Return a batch of GPipe's schedule with the backwards from the last microbatch to the first.

    So Figure 2c draws it.  :func:`gpipe` runs them from the first to the last, which idles no less.
    """

    def worker(stage: int) -> Iterator[Task]:
        batch = range(microbatches)
        yield from (Task(Op.FORWARD, stage, k, 0) for k in batch)
        yield from (Task(Op.BACKWARD, stage, k, 0) for k in reversed(batch))
        yield Task(Op.UPDATE, stage, batch[-1], 1)

    return Schedule(tuple(tuple(worker(s)) for s in range(stages)), "GPipe as drawn")


def passes_of(trace: Trace) -> pd.DataFrame:
    """Return the forwards and backwards of a trace."""
    return trace.frame[trace.frame["op"].isin(["FORWARD", "BACKWARD"])]


def starts(trace: Trace) -> dict[tuple[str, int, int], float]:
    """Return when each pass begins, by (op, stage, minibatch), all as the trace counts."""
    passes = passes_of(trace)
    keys = zip(passes["op"], passes["stage"], passes["microbatch"], strict=True)
    return dict(zip(keys, passes["start_s"].tolist(), strict=True))


def busy_s(events: pd.DataFrame, start: float, end: float) -> float:
    """Return how much of some events' time lies between two times, in the trace's unit."""
    clipped = events["end_s"].clip(start, end) - events["start_s"].clip(start, end)
    return float(clipped.sum())


def memory_of(trace: Trace) -> Memory:
    """Return what lay in the workers' memory, for a trace that has followed it.

    Simulated traces always have; a training's has with ``memory=True``.

    Raises:
        ValueError: it has not.
    """
    if trace.memory is None:
        raise ValueError(f"the memory of {trace.name} was not followed: train with memory=True")
    return trace.memory


def most_active(trace: Trace) -> int:
    """Return the most workers that compute at the same time."""
    passes = passes_of(trace)
    begins = passes.assign(time=passes["start_s"], change=1)
    ends = passes.assign(time=passes["end_s"], change=-1)
    changes = pd.concat([begins, ends]).sort_values(["time", "change"])
    return int(changes["change"].cumsum().max())


def update_ends(trace: Trace, worker: int = 0) -> list[float]:
    """Return when a worker's updates ended, in the trace's unit."""
    frame = trace.frame
    updates = frame[(frame["op"] == "UPDATE") & (frame["worker"] == worker)]
    return list(updates["end_s"])


def backward_ends(trace: Trace, stage: int = 0, group: int = 1) -> list[float]:
    """Return when the backwards of a stage ended, in order, in the trace's unit.

    On stage 0 a microbatch leaves the pipeline then. So many consecutive microbatches as ``group``,
    say those of a batch, end together, with the last of them.
    """
    frame = trace.frame
    own = frame[(frame["op"] == "BACKWARD") & (frame["stage"] == stage)]
    return sorted(own["end_s"].groupby(own["microbatch"] // group).max())


def mean_interval(ends: Sequence[float], first: int, last: int) -> float:
    """Return the mean time from one end to the next, from ``ends[first]`` to ``ends[last]``."""
    return float(ends[last] - ends[first]) / (last - first)


def fastest_interval(ends: Sequence[float]) -> float:
    """Return the shortest time from one end to the next.

    What else runs on a machine can only make a batch slower.  The time before the first end, which
    also finds memory that was never touched, does not count.
    """
    return min(after - before for before, after in pairwise(ends))


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
