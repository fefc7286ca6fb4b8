"""The best schedule that can be found for these costs, links and bytes."""

import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

import pandas as pd
from tqdm.auto import tqdm

from pipekit.clusters import Cluster
from pipekit.plans import Plan
from pipekit.profiling import Profile
from pipekit.schedules import Op, Schedule, ScheduleError
from pipekit.schedules.flushed import Pass, flushed
from pipekit.schedules.methods.by_name import named_schedules
from pipekit.searching.greedy import greedy, policies
from pipekit.searching.local_search import improve
from pipekit.searching.problem import Orders, Problem
from pipekit.simulation import simulate
from pipekit.simulation.costs import stage_costs

_KEPT = 3
"""How many of the best orders local search begins with."""


@dataclass(frozen=True)
class Found:
    """A schedule of one batch, and what it takes.

    Attributes:
        schedule: the table.
        makespan_s: simulated.
        peak_bytes: simulated, of each worker.
    """

    schedule: Schedule
    makespan_s: float
    peak_bytes: tuple[float, ...]


def search(
    profile: Profile,
    plan: Plan,
    cluster: Cluster | None = None,
    memory_cap: float | Sequence[float] | None = None,
    *,
    microbatches: int | None = None,
    workers: int | None = None,
    batches: int = 1,
    two_directions: bool = False,
    seconds: float = 10.0,
    optimizer_states: float = 0.0,
    seed: int = 0,
    progress: bool = False,
) -> Schedule:
    """Return the shortest schedule found that flushes after every batch and fits into memory.

    All named methods that fit are simulated first, so that the result is never longer than the best
    of them.  Then orders are made pass by pass by several policies, for stages in a row, in a loop
    or in a V, and the best of all are improved by local search, for ``seconds``, in each placement
    that a named method has.  A backward may
    stand whole or in two parts.  What is returned has been simulated like any other, links with
    their contention included.

    Args:
        profile: what each layer costs.
        plan: which layers each stage has, on one worker each, and what is recomputed.
        cluster: the links; None: they cost nothing.
        memory_cap: bytes of each worker, or one number for all; None: no limit.
        microbatches: of a batch; by default the plan's.
        workers: that share the stages; by default as many as stages, one each.
        batches: how many the schedule returned has, one after another; the search is for one.
        two_directions: whether a stage may be on two workers, as in Chimera and DualPipe, with
            twice the weights; simulate what comes of it with ``plan.with_replicas``.
        seconds: after the named methods have been simulated; at most half of them are spent on
            orders made pass by pass.
        optimizer_states: see :func:`pipekit.simulate`.
        seed: of the random choices; the same seed may find another schedule on a faster machine.
        progress: whether to show a bar with the best makespan, and how far above a lower bound it
            is.

    Raises:
        ScheduleError: nothing fits; the message says how much memory the most frugal needs.
        ValueError: the counts do not fit together.
    """
    workers = workers or len(plan.stages)
    m = microbatches or plan.microbatches
    if len(plan.stages) % workers or m < 1:
        raise ValueError(
            f"{len(plan.stages)} stages and {m} microbatches do not fit {workers} workers: use a "
            f"number of workers that divides the stages, and at least 1 microbatch"
        )
    caps = _caps(memory_cap, workers)
    judge = _Judge(profile, plan, cluster, optimizer_states)
    named = [
        judge.found(schedule)
        for schedule in named_schedules(len(plan.stages), workers, m)
        if two_directions or all(len(homes) == 1 for homes in schedule.stage_workers)
    ]
    able = [each for each in named if _fits(each, caps)]
    best = min(able, key=lambda each: each.makespan_s, default=None)
    placements = _placements(named, workers, m)
    end = time.monotonic() + seconds
    for number, placement in enumerate(placements):
        left = max(0.0, end - time.monotonic())
        deadline = time.monotonic() + left / (len(placements) - number)
        searcher = _Searcher(judge, placement, caps, seed, progress)
        best = searcher.better_than(best, named, deadline)
    if best is None:
        least = min(max(each.peak_bytes) for each in named)
        raise ScheduleError(
            f"no schedule was found that fits: the most frugal method needs {least:.4g} bytes on a "
            f"worker; cut the model into more stages, recompute, or use smaller microbatches"
        )
    return _repeated(best.schedule, m, batches)


class _Judge:
    """Simulates schedules of a profile's layers."""

    def __init__(
        self, profile: Profile, plan: Plan, cluster: Cluster | None, optimizer_states: float
    ) -> None:
        self.profile, self.plan, self.cluster = profile, plan, cluster
        self._states = optimizer_states

    def placed(self, schedule: Schedule) -> Plan:
        """Return the plan, with as many workers a stage as the schedule has."""
        return self.plan.with_replicas([len(workers) for workers in schedule.stage_workers])

    def memory(self, schedule: Schedule) -> pd.DataFrame:
        """Return the bytes of each worker over time."""
        trace = simulate(
            schedule, self.profile, self.placed(schedule), optimizer_states=self._states
        )
        assert trace.memory is not None
        return trace.memory.frame

    def found(self, schedule: Schedule) -> Found:
        """Return a schedule with what it takes."""
        trace = simulate(
            schedule,
            self.profile,
            self.placed(schedule),
            self.cluster,
            optimizer_states=self._states,
        )
        assert trace.memory is not None
        return Found(schedule, trace.makespan_s, trace.memory.peak_bytes)


class _Searcher:
    """Searches orders of passes that run on the workers that a placement has them on."""

    def __init__(
        self,
        judge: _Judge,
        placement: Schedule,
        caps: Sequence[float],
        seed: int,
        progress: bool,
    ) -> None:
        self._judge, self._caps, self._seed, self._progress = judge, caps, seed, progress
        costs = stage_costs(placement, judge.profile, judge.placed(placement))
        others = judge.memory(placement).drop(columns=["time_s", "activations", "recompute"])
        most = others.groupby("worker").max().sum(axis=1)
        rooms = [cap - other for cap, other in zip(caps, most, strict=True)]
        self._problems = [
            Problem.of(placement, costs, judge.cluster, rooms, whole) for whole in (True, False)
        ]
        self._is_single = all(len(homes) == 1 for homes in placement.stage_workers)

    def better_than(
        self, best: Found | None, named: Sequence[Found], deadline: float
    ) -> Found | None:
        """Return the best schedule found until a deadline, or that before if none is better."""
        starts = [*self._starts(named, (time.monotonic() + deadline) / 2)]
        for left, problem in zip((2, 1), self._problems, strict=True):
            now = time.monotonic()
            until = now + max(0.0, deadline - now) / left
            best = self._improved(problem, starts, best, until)
        return best

    def _starts(self, named: Sequence[Found], deadline: float) -> Iterator[Orders]:
        """Yield orders to begin with: the named methods', and until a deadline the policies'."""
        problem = self._problems[0]
        tried = [*policies(problem.workers)]
        random.Random(self._seed).shuffle(tried)
        made = (
            greedy(problem, policy)
            for policy in tried
            if self._is_single and time.monotonic() < deadline
        )
        for orders in chain((problem.orders(each.schedule) for each in named), made):
            fits = (problem.fits(worker, order) for worker, order in enumerate(orders))
            if problem.has(orders) and all(fits):
                yield orders

    def _improved(
        self, problem: Problem, starts: Sequence[Orders], best: Found | None, deadline: float
    ) -> Found | None:
        starts = sorted(starts, key=lambda orders: problem.timing(orders).makespan)[:_KEPT]
        with tqdm(desc="searching", unit=" better", disable=not self._progress, leave=False) as bar:

            def tell(makespan: float) -> None:
                gap = makespan / problem.bound - 1
                bar.set_postfix_str(f"{makespan:.4g} s, {gap:.1%} above the bound")
                bar.update()

            for number, orders in enumerate(starts):
                now = time.monotonic()
                until = now + max(0.0, deadline - now) / (len(starts) - number)
                improved = improve(problem, [*orders], until, self._seed + number, tell)
                passes = problem.passes(improved)
                table = flushed("searched", passes, problem.microbatches, 1)
                each = self._judge.found(Schedule(*table))
                if _fits(each, self._caps) and (best is None or each.makespan_s < best.makespan_s):
                    best = each
        return best


def _placements(named: Sequence[Found], workers: int, microbatches: int) -> list[Schedule]:
    """Return a schedule for each placement that is tried, with one microbatch in flight.

    These are where the named methods have the passes: in a row, a loop, a V, two directions.
    """
    found: dict[tuple[tuple[int, ...], ...], Schedule] = {}
    for each in named:
        graph = each.schedule.dependencies
        stages = range(each.schedule.stages)
        homes = tuple(
            tuple(graph.worker_of[n] for n in graph.row(Op.FORWARD, stage)) for stage in stages
        )
        if homes not in found:
            rows: list[list[Pass]] = [[] for _ in range(workers)]
            for k in range(microbatches):
                for op, order in ((Op.FORWARD, stages), (Op.BACKWARD, stages[::-1])):
                    for stage in order:
                        rows[homes[stage][k]].append((op, stage, k))
            found[homes] = Schedule(*flushed("one by one", rows, microbatches, 1))
    return list(found.values())


def _repeated(schedule: Schedule, microbatches: int, batches: int) -> Schedule:
    """Return the schedule with so many batches, one after another."""
    workers = [
        [(task.op, task.stage, task.microbatch) for task in tasks if task.version == 0]
        for tasks in schedule.workers
    ]
    overlaps = [
        ((a.op, a.stage, a.microbatch), (b.op, b.stage, b.microbatch)) for a, b in schedule.overlaps
    ]
    return Schedule(*flushed(schedule.name, workers, microbatches, batches, overlaps))


def _caps(memory_cap: float | Sequence[float] | None, workers: int) -> list[float]:
    if memory_cap is None:
        return [float("inf")] * workers
    caps = [memory_cap] * workers if isinstance(memory_cap, int | float) else list(memory_cap)
    if len(caps) != workers or min(caps) <= 0:
        raise ValueError(f"memory_cap is a number of bytes, or one for each of {workers} workers")
    return [float(cap) for cap in caps]


def _fits(found: Found, caps: Sequence[float]) -> bool:
    return all(peak <= cap for peak, cap in zip(found.peak_bytes, caps, strict=True))
