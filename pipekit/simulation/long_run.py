"""What many batches take, from a few periods: a table that repeats has times that repeat.

Once all that happens in a few periods comes later by one and the same time than some periods
before, everything behind it does, too, since a task starts when what it needs is there: each
further period adds the same seconds to the makespan.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import Any

import numpy as np
import pandas as pd

from pipekit.clusters import Cluster
from pipekit.plans import Plan
from pipekit.profiling import Profile
from pipekit.schedules import Op, Schedule, ScheduleError
from pipekit.schedules.schedule import beginning, periods_under_way, starts
from pipekit.simulation.alone import share_links
from pipekit.simulation.costs import Costs, stage_costs, sums_between_workers
from pipekit.simulation.loads import Seconds
from pipekit.simulation.simulate import simulate
from pipekit.traces import RECOMPUTE, Trace

_LOOKED_AT = (8, 16, 32, 50)
"""Periods after which the times may have become periodic; if not, all tasks are simulated."""
_CLOSE = 1e-12


@dataclass(frozen=True)
class LongRun:
    """What a run of many batches takes, simulated.

    Attributes:
        batches: how many.
        makespan_s: from the first task's start to the last one's end.
        bubble: the idle share of all workers' makespan, as :attr:`pipekit.Trace.bubble`.
        batch_s: seconds from batch to batch in the steady state, or the makespan's share.
        peak_bytes: the most bytes of each worker.
        periods: after how many periods the times were seen to repeat; None: all tasks were
            simulated, since they had not after 50, links are shared, workers sum gradients with one
            another, costs differ between microbatches, or there are not so many batches.
    """

    batches: int
    makespan_s: float
    bubble: float
    batch_s: float
    peak_bytes: tuple[int, ...]
    periods: int | None

    def __str__(self) -> str:
        how = "all tasks simulated" if self.periods is None else f"from {self.periods} periods"
        return (
            f"{self.batches:,} batches in {self.makespan_s:.6g} s, one each {self.batch_s:.6g} s, "
            f"bubble {self.bubble:.1%} ({how})"
        )


def long_run(
    schedule: Schedule,
    profile: Profile | Costs,
    plan: Plan | None = None,
    cluster: Cluster | None = None,
    *,
    batches: int,
    **options: Any,
) -> LongRun:
    """Return what so many ``batches`` of a schedule without end take, without tracing every task.

    The other arguments are those of :func:`pipekit.simulate`.

    Raises:
        ScheduleError: the schedule has an end, or cannot be executed.
        ValueError: schedule, profile, plan and cluster do not fit together.
    """
    if not schedule.period:
        raise ScheduleError(f"{schedule.title} has an end: repeat() makes a schedule without one")

    def run(some: Schedule) -> Trace:
        return simulate(some, profile, plan, cluster, **options)

    given = profile if isinstance(profile, Costs) else Costs(profile)
    varies = (
        given.microbatches
        or given.tasks
        or any(op.stream for op in schedule.ops)
        or sums_between_workers(stage_costs(schedule, given.profile, plan))
    )
    reach, each = periods_under_way(schedule), len(schedule.batch_stops)
    for periods in () if varies else _LOOKED_AT:
        if periods + 4 * reach > batches // each:
            break
        some = beginning(schedule, periods + reach)
        trace = run(some)
        assert trace.transfers is not None
        if cluster is not None and share_links(trace.transfers, cluster):
            break
        tasks = _tasks(some, trace)
        length, seconds = _cycle(schedule, trace, tasks, periods, reach)
        step = length * each
        # The first batches of two runs whose lengths differ by a cycle, and all those behind.
        more = (batches - (periods + 3 * reach) * each) // step if step else 0
        if more < 1:
            continue
        less, first = (run(schedule.take(batches - n * step)) for n in (more, more - 1))
        if abs(first.makespan_s - less.makespan_s - seconds) > _CLOSE * first.makespan_s:
            continue
        makespan = first.makespan_s + (more - 1) * seconds
        busy = _busy(first) + (more - 1) * (_busy(first) - _busy(less))
        return _of(batches, makespan, busy, seconds / step, first, periods)
    trace = run(schedule.take(batches))
    return _of(batches, trace.makespan_s, _busy(trace), trace.makespan_s / batches, trace, None)


def _of(
    batches: int, makespan: float, busy: float, batch_s: float, trace: Trace, periods: int | None
) -> LongRun:
    total = makespan * trace.workers
    bubble = 1.0 - busy / total if total else 0.0
    assert trace.memory is not None
    return LongRun(batches, makespan, bubble, batch_s, trace.memory.peak_bytes, periods)


def _busy(trace: Trace) -> float:
    return float((trace.frame["end_s"] - trace.frame["start_s"]).sum())


def _tasks(some: Schedule, trace: Trace) -> pd.DataFrame:
    """Return the events of a schedule's tasks, without forwards that its plan has run again."""
    if not (trace.frame["op"] == RECOMPUTE).any():
        return trace.frame
    at_a_place = {task[1:3] for task in chain(*some.workers) if task.op is Op.RECOMPUTE}
    columns = (trace.frame[name] for name in ("op", "stage", "microbatch"))
    is_task = [op != RECOMPUTE or (s, k) in at_a_place for op, s, k in zip(*columns, strict=True)]
    return trace.frame[is_task]


def _cycle(
    schedule: Schedule, trace: Trace, tasks: pd.DataFrame, periods: int, reach: int
) -> tuple[int, float]:
    """Return after how many of the first periods times come again, and how much later.

    They have to do so for as many periods as can be under way; 0 periods: they do not.
    """
    times: list[Sequence[Seconds]] = []  # of each worker and way, by period
    for worker, rows in tasks.groupby("worker"):
        begins = starts(schedule, int(worker), periods)
        for name in ("start_s", "end_s"):
            when = rows[name].to_numpy()
            times.append([when[a:b] for a, b in pairwise(begins)])
    assert trace.transfers is not None
    ways: pd.DataFrame = trace.transfers.sort_values("microbatch", kind="stable")
    size = schedule.period_microbatches
    for _, rows in ways.groupby(["source", "destination", "purpose", "stage"]):
        if len(rows) % size == 0:
            times.append([*rows["start_s"].to_numpy().reshape(-1, size)])
    for length in range(1, (periods - reach - 1) // 2 + 1):
        last = range(periods - length - reach - 1, periods - length)
        pairs = ((each, n) for each in times for n in last if n + length < len(each))
        shifts = np.concatenate([each[n + length] - each[n] for each, n in pairs])
        seconds = float(np.median(shifts))
        if np.all(np.abs(shifts - seconds) <= _CLOSE * trace.makespan_s):
            return length, seconds
    return 0, 0.0
