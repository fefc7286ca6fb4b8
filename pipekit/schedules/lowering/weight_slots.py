"""Where the weight versions of a worker live."""

from collections.abc import Collection, Sequence
from typing import NamedTuple

from pipekit.schedules.ops import Op
from pipekit.schedules.table import Table
from pipekit.schedules.task import ScheduleError, Task


class WeightSlots(NamedTuple):
    """Attributes, each with one entry a task of the worker's list.

    slots: which of its stage's slots a pass reads, or an update writes.
    alive: how many versions are alive after the task.
    """

    slots: list[int]
    alive: list[int]


def weight_slots(
    tasks: Sequence[Task], stashing: bool = False, borrowed: Collection[int] = ()
) -> WeightSlots:
    """Give out a worker's weight slots, as a compiler gives out registers.

    A version lives from its update (0: from the start) to its last reader, and while it is the
    newest.  An update works in place if no later task reads the version before it; else it writes
    the slot of a dead version.  So a stage has as many slots as it ever has versions alive at once,
    and nothing is copied back.

    With ``stashing`` it is known that each backward reads its forward's version; else a backward
    whose version does not lie where its forward's did raises ScheduleError.  The weights of
    ``borrowed`` stages lie in no slot.
    """
    last_reader = {
        (stage, version): position
        for position, (op, stage, _, version) in enumerate(tasks)
        if op.is_pass
    }
    newest = dict.fromkeys({task.stage for task in tasks}.difference(borrowed), 0)
    slot_of = {(stage, 0): 0 for stage in newest}
    free: dict[int, list[int]] = {stage: [] for stage in newest}
    used = dict.fromkeys(newest, 1)
    forward_slot: dict[tuple[int, int], int] = {}
    result = WeightSlots([], [])
    for position, task in enumerate(tasks):
        op, stage, microbatch, version = task
        if stage not in newest:
            slot = 0
        elif not op.is_pass:
            old = stage, newest[stage]
            if last_reader.get(old, -1) < position:
                free[stage].append(slot_of.pop(old))
            if free[stage]:
                slot = free[stage].pop()
            else:
                slot, used[stage] = used[stage], used[stage] + 1
            slot_of[stage, version] = slot
            newest[stage] = version
        else:
            slot = slot_of[stage, version]
            if stashing:
                pass  # a version stays in its slot until its last reader is through
            elif op is Op.FORWARD:
                forward_slot[stage, microbatch] = slot
            elif op.is_backward and forward_slot[stage, microbatch] != slot:
                raise ScheduleError(
                    f"{task} reads version {version}, which does not lie where its forward's "
                    f"version lay; without stashing, a backward can only read a version that "
                    f"replaced its forward's in place"
                )
            if op.adds_gradient and not stashing:
                del forward_slot[stage, microbatch]
            if last_reader[stage, version] == position and version != newest[stage]:
                free[stage].append(slot_of.pop((stage, version)))
        result.slots.append(slot)
        result.alive.append(len(slot_of))
    return result


def slots_of(schedule: Table) -> tuple[WeightSlots, ...]:
    """Return the weight slots of each worker of a finite schedule, which are found once."""
    return schedule.remembered(
        "slots",
        lambda: tuple(
            weight_slots(tasks, schedule.stashing, borrowed)
            for tasks, borrowed in zip(schedule.workers, schedule.borrowed, strict=True)
        ),
    )
