"""Where the weight versions of a worker live."""

from collections.abc import Sequence
from typing import NamedTuple

from pipekit.schedules.ops import Op
from pipekit.schedules.schedule import ScheduleError
from pipekit.schedules.task import Task


class WeightBuffers(NamedTuple):
    """Attributes, each with one entry a task of the worker's list.

    buffers: which of its stage's buffers a pass reads, or an update writes.
    alive: how many versions are alive after the task.
    """

    buffers: list[int]
    alive: list[int]


def weight_buffers(tasks: Sequence[Task]) -> WeightBuffers:
    """Give out a worker's weight buffers, as a compiler gives out registers.

    A version lives from its update (0: from the start) to its last reader, and while it is the
    newest.  An update works in place if no later task reads the version before it; else it writes
    the buffer of a version that is dead.  So a stage has as many buffers as it ever has versions
    alive at once, and nothing is copied back.

    Args:
        tasks: one worker's list, with versions that :func:`check` accepts.

    Raises:
        ScheduleError: a backward would read a version that does not lie where its forward's did.
    """
    last_reader = {
        (task.stage, task.version): position
        for position, task in enumerate(tasks)
        if task.op is not Op.UPDATE
    }
    newest = {task.stage: 0 for task in tasks}
    home = {(stage, 0): 0 for stage in newest}
    free: dict[int, list[int]] = {stage: [] for stage in newest}
    used = dict.fromkeys(newest, 1)
    forward_buffer: dict[tuple[int, int], int] = {}
    result = WeightBuffers([], [])
    for position, task in enumerate(tasks):
        op, stage, microbatch, version = task
        if op is Op.UPDATE:
            old = stage, newest[stage]
            if last_reader.get(old, -1) < position:
                buffer = home.pop(old)
            elif free[stage]:
                buffer = free[stage].pop()
            else:
                buffer, used[stage] = used[stage], used[stage] + 1
            home[stage, version] = buffer
            newest[stage] = version
        else:
            buffer = home[stage, version]
            if op is Op.FORWARD:
                forward_buffer[stage, microbatch] = buffer
            elif forward_buffer.pop((stage, microbatch)) != buffer:
                raise ScheduleError(
                    f"{task} reads version {version}, which does not lie where its forward's "
                    f"version lay; without stashing, a backward can only read a version that "
                    f"replaced its forward's in place"
                )
            if last_reader[stage, version] == position and version != newest[stage]:
                free[stage].append(home.pop((stage, version)))
        result.buffers.append(buffer)
        result.alive.append(len(home))
    return result
