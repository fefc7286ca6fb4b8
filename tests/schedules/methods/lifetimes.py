"""How many microbatches' activations lie where, swept over time from when tasks run."""

from collections import Counter
from collections.abc import Mapping

from pipekit.schedules import Op, Schedule, slots


def peaks_over_time(schedule: Schedule, durations: Mapping[Op, float]) -> list[int]:
    """Return the most that each worker has at once, those that it keeps for another one too.

    Activations are there from the beginning of the task that makes or brings them to the end of
    that which uses them up or takes them away; so for a while they are at both ends of a transfer.
    """
    changes: list[Counter[tuple[float, int]]] = [Counter() for _ in schedule.workers]
    times = slots(schedule, durations)
    for worker, tasks in enumerate(schedule.workers):
        for task, (start, end) in zip(tasks, times[worker].tolist(), strict=True):
            name, peer = task.op.base_name, task.op.peer
            if name in ("FORWARD", "LOAD"):
                changes[worker][start, 1] += 1
            if name in ("BACKWARD", "BACKWARD_WEIGHT", "OFFLOAD"):
                changes[worker][end, -1] += 1
            if peer is not None and name == "OFFLOAD":
                changes[peer][start, 1] += 1
            if peer is not None and name == "LOAD":
                changes[peer][end, -1] += 1
    return [most(each) for each in changes]


def most(changes: Counter[tuple[float, int]]) -> int:
    """What ends at a time goes before what begins then."""
    here = peak = 0
    for (_, sign), count in sorted(changes.items()):
        here += sign * count
        peak = max(peak, here)
    return peak
