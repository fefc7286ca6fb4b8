"""When each task runs, if every forward and backward takes a fixed number of time slots."""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from pipekit.schedules.ops import Op
from pipekit.schedules.replay import producer, replay
from pipekit.schedules.schedule import Schedule

PAPER_SLOTS: Mapping[Op, float] = {Op.FORWARD: 1, Op.BACKWARD: 2, Op.UPDATE: 0}


def slots(
    schedule: Schedule, durations: Mapping[Op, float] = PAPER_SLOTS
) -> list[NDArray[np.float64]]:
    """Return, for each worker, an array [tasks, 2] of start and end slots, from 0.

    Every task starts as soon as its worker is free and its data is there; sending takes no time,
    and neither does summing the gradients of a stage's workers, for which their updates wait.

    Args:
        schedule: the table.
        durations: slots of each op; by default a backward takes two, as in PipeDream-2BW's Figure
            2, and an update none.

    Raises:
        ScheduleError: the workers would wait for one another for ever.
    """
    times = [np.zeros((len(tasks), 2)) for tasks in schedule.workers]
    ends: dict[tuple[Op, int, int], float] = {}
    free = [0.0] * len(schedule.workers)
    for worker, position, task in replay(schedule):
        start = free[worker]
        source = producer(task, schedule.stages)
        if task.op is Op.UPDATE:
            update = schedule.update_of[task.stage][task.microbatch]
            summed = schedule.updates[task.stage][update - 1]
            start = max(start, max(ends[Op.BACKWARD, task.stage, k] for k in summed))
        elif source is not None:
            start = max(start, ends[*source, task.microbatch])
        end = free[worker] = start + durations[task.op]
        if task.op is not Op.UPDATE:
            ends[task.op, task.stage, task.microbatch] = end
        times[worker][position] = start, end
    return times
