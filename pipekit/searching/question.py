"""What is searched for: schedules with what they take, simulated, and the problem behind them."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from operator import mul

from pipekit.clusters import Cluster
from pipekit.plans import Plan
from pipekit.profiling import Profile
from pipekit.schedules import Schedule, model_parallel, offloaded
from pipekit.schedules.methods.by_name import named_schedules
from pipekit.searching.bound import anywhere, bound
from pipekit.searching.problem import Orders, Placement, Problem
from pipekit.simulation import simulate
from pipekit.simulation.costs import Costs, StageCosts, stage_costs
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


@dataclass(frozen=True)
class Question:
    """A short schedule of a batch is searched for, that fits into memory.

    With a link to the host, orders are made as if memory were endless, and what does not fit
    offloads activations.  ValueError if the counts do not fit together.
    """

    profile: Profile
    plan: Plan
    cluster: Cluster | None  # None: links cost nothing
    memory_cap: float | Sequence[float] | None
    workers: int
    microbatches: int
    optimizer_states: float = 0.0
    placement: Placement | None = None  # None: that is searched for, too
    host_bytes_per_s: float | None = None

    def __post_init__(self) -> None:
        stages, workers, homes = len(self.plan.stages), self.workers, self.placement
        object.__setattr__(self, "plan", self.plan.with_replicas([1] * stages))
        if workers > stages:
            raise ValueError(f"use at most as many workers as stages: {stages}, and not {workers}")
        if homes is not None and (len(homes) != stages or set(homes) != set(range(workers))):
            raise ValueError(
                f"placement names a worker for each of {stages} stages, and each of {workers} "
                f"workers"
            )
        if len(self.caps) != workers or not all(cap > 0 for cap in self.caps):
            raise ValueError(
                f"memory_cap is a number of bytes, or one for each of {workers} workers"
            )

    @cached_property
    def caps(self) -> list[float]:
        """The bytes of each worker."""
        cap = math.inf if self.memory_cap is None else self.memory_cap
        return [*map(float, cap if isinstance(cap, Iterable) else [cap] * self.workers)]

    @cached_property
    def _costs(self) -> Sequence[StageCosts]:
        # Where a stage is says nothing about what a microbatch costs there.
        one_by_one = model_parallel(len(self.plan.stages)).take(1)
        return stage_costs(one_by_one, self.profile, self.plan)

    @cached_property
    def methods(self) -> list[Found]:
        """The named methods of so many stages, workers and microbatches, simulated."""
        able = named_schedules(len(self.plan.stages), self.workers, self.microbatches)
        return [*map(self.found, able)]

    @cached_property
    def named(self) -> list[Found]:
        """Those of them that have the stages on the workers that are asked for."""
        return [each for each in self.methods if self.placement in (None, each.placement)]

    @cached_property
    def least_s(self) -> float:
        """Seconds that no schedule takes less than."""
        if self.placement is None:
            return anywhere(self.problem([0] * len(self.plan.stages)))
        return bound(self.problem(self.placement))

    def found(self, schedule: Schedule) -> Found:
        """Return a schedule with what it takes, offloading where it does not fit.

        Each worker that is too full offloads its first stages, which wait longest, one by one.
        """
        found, away = self._simulated(schedule), set[int]()
        while self.host_bytes_per_s and not self.fits(found):
            own = [{task.stage for task in tasks} - away for tasks in schedule.workers]
            full = [peak > cap for peak, cap in zip(found.peak_bytes, self.caps, strict=True)]
            more = {min(left) for left, is_full in zip(own, full, strict=True) if is_full and left}
            if not more:
                break
            away |= more
            found = self._simulated(offloaded(schedule, away))
        return found

    def _simulated(self, schedule: Schedule) -> Found:
        costs = Costs(self.profile, host_bytes_per_s=self.host_bytes_per_s)
        states = self.optimizer_states
        trace = simulate(schedule, costs, self.plan, self.cluster, optimizer_states=states)
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

    def problem(self, placement: Sequence[int]) -> Problem:
        """Return the problem with stages on these workers."""
        constant = [0.0] * self.workers
        for cost, worker in zip(self._costs, placement, strict=True):
            weights = (1 + self.optimizer_states) * cost.whole.parameter_bytes
            constant[worker] += weights + cost.whole.buffer_bytes
        caps = [math.inf] * self.workers if self.host_bytes_per_s else self.caps
        rooms = [cap - other for cap, other in zip(caps, constant, strict=True)]
        return Problem(placement, self.microbatches, self._costs, self.cluster, rooms)

    @cached_property
    def alike(self) -> list[int]:
        """Sizes of groups of workers that can change places, outermost first; none: no two can."""
        levels = self.cluster.levels if self.cluster else ()
        sizes = list(accumulate((level.width for level in levels), mul, initial=1))[:-1] or [1]
        sizes = [size for size in sizes if size < self.workers]
        is_even = all(self.workers % size == 0 for size in sizes) and len(set(self.caps)) == 1
        return sizes[::-1] if is_even else []
