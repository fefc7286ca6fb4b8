"""A schedule's tasks as columns: what of them is the same whatever they cost."""

from collections.abc import Callable
from typing import NamedTuple, TypeVar
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from pipekit.schedules import OPS, OpRule, Schedule
from pipekit.schedules.dependencies import Dependencies
from pipekit.schedules.lowering.weight_slots import weight_slots

Numbers = NDArray[np.int64]
T = TypeVar("T")

OPS_IN_ORDER = tuple(OPS)
_PLACE = {op: place for place, op in enumerate(OPS_IN_ORDER)}


def once(function: Callable[[Schedule], T]) -> Callable[[Schedule], T]:
    """Return a function of schedules that is called once for each, as long as it is in use."""
    known: WeakKeyDictionary[Dependencies, T] = WeakKeyDictionary()

    def remembered(schedule: Schedule) -> T:
        graph = schedule.dependencies  # schedules are compared by their tasks, which takes longer
        if graph not in known:
            known[graph] = function(schedule)
        return known[graph]

    return remembered


class Columns(NamedTuple):
    """Of each task, by its number.

    Attributes:
        worker: that has it.
        op: its place in :data:`OPS_IN_ORDER`.
        stage, microbatch, version: as in :class:`pipekit.schedules.Task`.
    """

    worker: Numbers
    op: Numbers
    stage: Numbers
    microbatch: Numbers
    version: Numbers

    def whose(self, is_so: Callable[[OpRule], bool]) -> NDArray[np.bool_]:
        """Return for each task whether this is so of its op's rule."""
        return np.array([is_so(OPS[op]) for op in OPS_IN_ORDER])[self.op]


@once
def columns(schedule: Schedule) -> Columns:
    """Return a schedule's tasks."""
    graph = schedule.dependencies
    rows = [(_PLACE[op], *rest) for op, *rest in graph.tasks]
    return Columns(np.array(graph.worker_of), *np.array(rows, np.int64).reshape(-1, 4).T)


@once
def slot_counts(schedule: Schedule) -> list[dict[int, int]]:
    """Return for each worker how many weight slots each of its stages takes."""
    found = []
    for tasks in schedule.workers:
        stages = sorted({task.stage for task in tasks})
        own = {stage: [task for task in tasks if task.stage == stage] for stage in stages}
        found.append({stage: 1 + max(weight_slots(own[stage]).slots) for stage in stages})
    return found
