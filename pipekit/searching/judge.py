"""What a schedule takes, simulated, and the problem that leads to it: searches read both here."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from operator import mul

from pipekit.clusters import Cluster
from pipekit.plans import Plan
from pipekit.profiling import Profile
from pipekit.schedules import Schedule, model_parallel, offloaded
from pipekit.searching.problem import Orders, Placement, Problem
from pipekit.simulation import simulate
from pipekit.simulation.costs import Costs, stage_costs
from pipekit.traces.memory import PARTS


@dataclass(frozen=True)
class Found:
    """A schedule, and what it takes."""

    schedule: Schedule  # the table
    makespan_s: float  # simulated
    peak_bytes: tuple[float, ...]  # simulated, of each worker, when the optimizer has its state

    @property
    def placement(self) -> Placement:
        """The worker of each stage."""
        return tuple(home for (home,) in self.schedule.stage_workers)


class Judge:
    """Simulates schedules of a profile's layers, and says which of them fit into memory.

    With a link to the host, orders are made as if memory were endless, and what does not fit
    offloads activations.
    """

    def __init__(
        self,
        profile: Profile,
        plan: Plan,
        cluster: Cluster | None,
        memory_cap: float | Sequence[float] | None,
        workers: int,
        optimizer_states: float,
        host_bytes_per_s: float | None = None,
    ) -> None:
        cap = math.inf if memory_cap is None else memory_cap
        caps = [cap] * workers if isinstance(cap, int | float) else cap
        self.caps = [float(each) for each in caps]
        if len(self.caps) != workers or not all(cap > 0 for cap in self.caps):
            raise ValueError(
                f"memory_cap is a number of bytes, or one for each of {workers} workers"
            )
        self._profile, self.plan, self._cluster = profile, plan, cluster
        self._states, self._host = optimizer_states, host_bytes_per_s
        self._straight = plan.with_replicas([1] * len(plan.stages))
        # Where a stage is says nothing about what a microbatch costs there.
        one_by_one = model_parallel(len(plan.stages)).take(1)
        self._costs = stage_costs(one_by_one, profile, self._straight)

    def found(self, schedule: Schedule) -> Found:
        """Return a schedule with what it takes, offloading where it does not fit.

        Each worker that is too full offloads its first stages, which wait longest, one by one.
        """
        found, away = self._simulated(schedule), set[int]()
        while self._host and not self.fits(found):
            own = [{task.stage for task in tasks} - away for tasks in schedule.workers]
            full = [peak > cap for peak, cap in zip(found.peak_bytes, self.caps, strict=True)]
            more = {min(left) for left, is_full in zip(own, full, strict=True) if is_full and left}
            if not more:
                break
            away |= more
            found = self._simulated(offloaded(schedule, away))
        return found

    def _simulated(self, schedule: Schedule) -> Found:
        costs = Costs(self._profile, host_bytes_per_s=self._host)
        plan, states = self._straight, self._states
        trace = simulate(schedule, costs, plan, self._cluster, optimizer_states=states)
        assert trace.memory is not None
        # The optimizer's state counts as if it were there all the time.
        by_worker = trace.memory.frame.groupby("worker")
        states_there = by_worker["optimizer"].transform("max")
        total = trace.memory.frame.assign(optimizer=states_there)[PARTS].sum(axis=1)
        peaks = total.groupby(trace.memory.frame["worker"]).max()
        return Found(schedule, trace.makespan_s, tuple(map(float, peaks)))

    def fits(self, found: Found) -> bool:
        """Return whether no worker needs more bytes than it has."""
        pairs = zip(found.peak_bytes, self.caps, strict=True)
        return all(peak <= cap * (1 + 1e-12) for peak, cap in pairs)

    def made(self, problem: Problem, orders: Orders) -> Found:
        """Return orders of passes as a schedule, with what it takes."""
        passes = [[problem.numbered[number] for number in order] for order in orders]
        return self.found(Schedule.one_batch("searched", passes))

    def problem(self, placement: Sequence[int], microbatches: int) -> Problem:
        """Return the problem of so many microbatches with stages on these workers."""
        constant = [0.0] * len(self.caps)
        for cost, worker in zip(self._costs, placement, strict=True):
            weights = (1 + self._states) * cost.whole.parameter_bytes
            constant[worker] += weights + cost.whole.buffer_bytes
        caps = [math.inf] * len(self.caps) if self._host else self.caps
        rooms = [cap - other for cap, other in zip(caps, constant, strict=True)]
        return Problem(placement, microbatches, self._costs, self._cluster, rooms)

    @cached_property
    def alike(self) -> list[int]:
        """Sizes of groups of workers that can change places, outermost first; none: no two can."""
        workers = len(self.caps)
        levels = self._cluster.levels if self._cluster else ()
        sizes = list(accumulate((level.width for level in levels), mul, initial=1))[:-1] or [1]
        sizes = [size for size in sizes if size < workers]
        is_even = all(workers % size == 0 for size in sizes) and len(set(self.caps)) == 1
        return sizes[::-1] if is_even else []


@dataclass(frozen=True)
class Question:
    """What is searched for."""

    judge: Judge
    named: Sequence[Found]  # the named methods that are answers, simulated
    microbatches: int  # of the batch
    placement: Placement | None  # None: that is searched for, too
