"""When each task runs, if every pass takes a fixed number of time slots."""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from pipekit.schedules.dependencies import NOTHING
from pipekit.schedules.ops import OPS, Op
from pipekit.schedules.replay import order
from pipekit.schedules.table import Table

PAPER_SLOTS: Mapping[Op, float] = {
    Op.FORWARD: 1,
    Op.BACKWARD: 2,
    Op.BACKWARD_INPUT: 1,
    Op.BACKWARD_WEIGHT: 1,
    Op.UPDATE: 0,
}
"""A backward takes two slots, whole or in parts, and an update none."""


def slots(
    schedule: Table,
    durations: Mapping[Op, float] = PAPER_SLOTS,
    overlap: float | None = None,
) -> list[NDArray[np.float64]]:
    """Return, for each worker, an array [tasks, 2] of start and end slots, from 0.

    Every task starts as soon as its worker is free and its data is there; sending takes no time,
    and neither does summing the gradients of a stage's workers, for which their updates wait.

    Args:
        schedule: the table.
        durations: slots of each op; by default a backward takes two, as in PipeDream-2BW's Figure
            2, its two parts one each, and an update none.  What is not named is by default, too.
        overlap: what tasks that run together take (``schedule.overlaps``), as a share of what they
            take one after the other.  They begin when all data is there, and what they give is
            there at their end; in the result each has its share of their time.  None: they run
            one after the other, as any tasks.

    Raises:
        ScheduleError: the workers would wait for one another for ever.
    """
    graph = schedule.dependencies
    lasting = {**PAPER_SLOTS, **durations}
    times = np.zeros((len(graph.tasks), 2))
    ends = [0.0] * (len(graph.tasks) + 1)  # the last is found at NOTHING, -1
    free = [0.0] * len(schedule.workers)
    for number in order(graph):
        op, worker = graph.tasks[number].op, graph.worker_of[number]
        partner = graph.partner[number]
        if overlap is not None and partner != NOTHING:
            if partner > number:
                both = (number, partner)
                data = (ends[need[n]] for n in both for need in (graph.own, graph.source))
                start = max(free[worker], *data)
                middle = start + overlap * lasting[op]
                end = middle + overlap * lasting[graph.tasks[partner].op]
                times[number], times[partner] = (start, middle), (middle, end)
                ends[number] = ends[partner] = free[worker] = end
            continue
        if OPS[op].is_pass:
            start = max(free[worker], ends[graph.own[number]], ends[graph.source[number]])
        else:
            start = max(free[worker], max(ends[each] for each in graph.summed(number)))
        end = ends[number] = free[worker] = start + lasting[op]
        times[number] = start, end
    return [times[a:b] for a, b in zip(graph.first, graph.first[1:], strict=False)]
