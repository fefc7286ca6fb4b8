"""The proof that a schedule can be executed, and what it keeps alive while it is."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipekit.schedules.ops import Op
from pipekit.schedules.replay import NOBODY, Owners, owners, replay
from pipekit.schedules.schedule import Schedule, ScheduleError
from pipekit.schedules.task import Task
from pipekit.schedules.weight_slots import weight_slots


@dataclass(frozen=True)
class Report:
    """What a checked schedule keeps alive on each worker.

    Attributes:
        versions: ``versions[w][i]``: weight versions alive after task ``i`` of worker ``w``: of
            each of its stages the newest, and older ones that a later task reads.
        in_flight: ``in_flight[w][i]``: microbatches whose forward is done and whose backward is
            not, after task ``i`` of worker ``w``.
    """

    versions: tuple[NDArray[np.int32], ...]
    in_flight: tuple[NDArray[np.int32], ...]

    @property
    def peak_versions(self) -> tuple[int, ...]:
        """The most weight versions alive at once, a worker."""
        return tuple(int(v.max(initial=1)) for v in self.versions)

    @property
    def peak_in_flight(self) -> tuple[int, ...]:
        """The most microbatches in flight at once, a worker."""
        return tuple(int(v.max(initial=0)) for v in self.in_flight)


def check(schedule: Schedule, capacity: int | None = None, joint_updates: bool = False) -> Report:
    """Prove a schedule executable, or say what is wrong with it.

    Proved: every forward stands in the table once, and every backward too if there is any; no
    worker waits for ever (see :mod:`pipekit.schedules.replay`), also if a send blocks while
    ``capacity`` messages are under way on its link; every update comes once on each worker that has
    the stage, in order, after the backwards that it sums; a version is read only where and after it
    is produced; forward and backward of a microbatch are on one worker, and read the same version,
    unless ``schedule.stashing`` is False.

    Args:
        schedule: the table.
        capacity: see :func:`pipekit.schedules.replay.replay`.
        joint_updates: whether updates wait for one another's gradients, likewise.

    Raises:
        ScheduleError: naming the tasks at fault.
    """
    who = owners(schedule)
    _every_task_once(schedule, who)
    for _ in replay(schedule, capacity, joint_updates):
        pass
    reports = [
        _check_worker(schedule, worker, tasks) for worker, tasks in enumerate(schedule.workers)
    ]
    return Report(tuple(r[0] for r in reports), tuple(r[1] for r in reports))


def _every_task_once(schedule: Schedule, who: Owners) -> None:
    """Raise for a forward, backward or update that no worker has (owners() raised for doubles)."""
    if not schedule.microbatches:
        raise ScheduleError("the schedule is empty: it has no microbatch")
    for op in (Op.FORWARD, Op.BACKWARD) if schedule.trains else (Op.FORWARD,):
        for stage in range(schedule.stages):
            row = who.get((op, stage), [NOBODY])
            if NOBODY in row:
                raise ScheduleError(
                    f"no worker has {op.value}{row.index(NOBODY)} of stage {stage}, though the "
                    f"run has {schedule.microbatches} microbatches"
                )


def _check_worker(
    schedule: Schedule, worker: int, tasks: Sequence[Task]
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Check one worker's versions; return how many are alive, and in flight, after each task."""
    newest = {task.stage: 0 for task in tasks if task.op is not Op.UPDATE}
    producer: dict[int, Task] = {}
    forward_of: dict[tuple[int, int], Task] = {}
    in_flight = np.zeros(len(tasks), dtype=np.int32)
    flying = 0
    for position, task in enumerate(tasks):
        op, stage, microbatch, version = task
        if stage not in newest:
            raise ScheduleError(
                f"worker {worker} has {task} and no forward or backward of that stage: an update "
                f"stands where the stage lives"
            )
        if op is Op.UPDATE:
            _check_update(schedule, worker, task, newest[stage], producer.get(stage))
            newest[stage], producer[stage] = version, task
        else:
            if version > newest[stage]:
                raise ScheduleError(
                    f"worker {worker}: {task} reads version {version} before U{version} of stage "
                    f"{stage} has produced it"
                )
            if op is Op.FORWARD:
                forward_of[stage, microbatch] = task
                flying += schedule.trains
            else:
                forward = forward_of.pop((stage, microbatch), None)
                if forward is None:
                    raise ScheduleError(
                        f"worker {worker} has {task} and another worker its forward: a backward "
                        f"runs where its forward ran"
                    )
                flying -= 1
                if schedule.stashing and forward.version != version:
                    raise ScheduleError(
                        f"worker {worker}: {forward} reads version {forward.version} and {task} "
                        f"version {version}; they must be the same, or declare stashing=False"
                    )
        in_flight[position] = flying
    for stage, version in sorted(newest.items()) if schedule.trains else ():
        if version != max(schedule.update_of[stage]):
            raise ScheduleError(
                f"worker {worker} has no U{version + 1} of stage {stage}, though the run has "
                f"{schedule.microbatches} microbatches, and other workers may have that update"
            )
    return np.array(weight_slots(tasks).alive, dtype=np.int32), in_flight


def _check_update(
    schedule: Schedule, worker: int, task: Task, newest: int, before: Task | None
) -> None:
    expected = newest + 1
    if task.version != expected:
        raise ScheduleError(
            f"worker {worker}: {task} follows {before or 'the initial weights'}; the next update "
            f"must be U{expected}"
        )
    summing = schedule.update_of[task.stage][task.microbatch]
    if summing != expected:
        raise ScheduleError(
            f"worker {worker}: {task} sums up to microbatch {task.microbatch}, where U{summing} of "
            f"that stage ends on this or another worker"
        )
