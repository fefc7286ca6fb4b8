"""PipeDream-2BW's Figures 1 to 3 in closed form, for tables of tasks to be held against (2, 3)."""

from collections.abc import Callable
from itertools import pairwise

from pipekit.schedules import Op, Schedule, ScheduleError, Task, check
from pipekit.schedules.methods.one_f_one_b import alternate
from pipekit.schedules.time_slots import PAPER_SLOTS

Starts = dict[tuple[str, int, int], float]
"""In which slot, from 0, each pass begins, by (op, stage, microbatch), these from 0 too."""

_FORWARD, _BACKWARD = PAPER_SLOTS[Op.FORWARD], PAPER_SLOTS[Op.BACKWARD]


def gpipe_starts(depth: int, microbatches: int) -> Starts:
    """Return Figure 1a's first batch: all forwards, then all backwards, which take two slots."""
    turned = (microbatches + depth - 1) * _FORWARD
    passes = [(s, k) for s in range(depth) for k in range(microbatches)]
    forwards: Starts = {("FORWARD", s, k): (s + k) * _FORWARD for s, k in passes}
    backwards = {("BACKWARD", s, k): turned + (depth - 1 - s + k) * _BACKWARD for s, k in passes}
    return forwards | backwards


def one_f_one_b_starts(depth: int, microbatches: int) -> Starts:
    """Return Figures 1b and 2: stage s, from 0, admits d - s; then it alternates without a gap.

    The output stage turns microbatch k around at d + 3k, and its gradient goes up a stage in every
    two slots.  Once a stage is full, the backward of k makes room for the forward of k + d - s.
    """
    found: Starts = {}
    for s in range(depth):
        for k in range(microbatches):
            back = depth * _FORWARD + k * (_FORWARD + _BACKWARD) + (depth - 1 - s) * _BACKWARD
            found["BACKWARD", s, k] = back
            room = found.get(("BACKWARD", s, k - (depth - s)))
            found["FORWARD", s, k] = (s + k) * _FORWARD if room is None else room + _BACKWARD
    return found


def version_read(microbatch: int, microbatches: int) -> int:
    """Return max(floor((k - 1) / m) - 1, 0) for microbatch k, from 1 (section 3.1)."""
    return max((microbatch - 1) // microbatches - 1, 0)


def reads_as_printed(schedule: Schedule, microbatches: int) -> bool:
    """Return whether every pass of one pipeline reads :func:`version_read`."""
    return all(
        task.version == version_read(task.microbatch + 1, microbatches)
        for tasks in schedule.workers
        for task in tasks
        if task.op is not Op.UPDATE
    )


def forward_and_backward_agree(schedule: Schedule) -> bool:
    """Return whether all passes of a microbatch, on every stage, read one version."""
    versions: dict[int, set[int]] = {}
    for tasks in schedule.workers:
        for task in tasks:
            if task.op is not Op.UPDATE:
                versions.setdefault(task.microbatch, set()).add(task.version)
    return all(len(read) == 1 for read in versions.values())


def makes_versions_of(schedule: Schedule) -> list[list[int]]:
    """Return, for each worker, the microbatch (from 0) after whose backward each update comes."""
    return [
        [before.microbatch for before, task in pairwise(tasks) if task.op is Op.UPDATE]
        for tasks in schedule.workers
    ]


def last_reader(schedule: Schedule, version: int) -> list[Task]:
    """Return each worker's last task that reads a version; what follows may discard it."""
    return [
        next(t for t in reversed(tasks) if t.op is not Op.UPDATE and t.version == version)
        for tasks in schedule.workers
    ]


def unguarded(depth: int, microbatches: int, batches: int) -> Schedule:
    """Return 2BW's table for any m, also below d, where it may read versions before they exist."""

    def worker(stage: int) -> list[Task]:
        tasks = []
        for op, k in alternate(range(microbatches * batches), depth - stage):
            tasks.append(Task(op, stage, k, version_read(k + 1, microbatches)))
            if op is Op.BACKWARD and (k + 1) % microbatches == 0:
                tasks.append(Task(Op.UPDATE, stage, k, (k + 1) // microbatches))
        return tasks

    return Schedule(tuple(tuple(worker(s)) for s in range(depth)), "2BW, any m")


def refused(make: Callable[[], Schedule]) -> bool:
    """Return whether a schedule cannot be made, or not be executed."""
    try:
        check(make())
    except ScheduleError:
        return True
    return False
