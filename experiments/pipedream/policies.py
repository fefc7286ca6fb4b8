"""1F1B-RR as each worker makes it alone, and the policies that it is held against (3.3)."""

import math
from collections import deque
from collections.abc import Sequence

from pipekit.schedules import Op, Schedule, Task


def worker_list(
    replicas: Sequence[int], stage: int, replica: int, minibatches: int, in_flight: int
) -> tuple[Task, ...]:
    """Return one worker's 1F1B-RR list (PipeDream, 3.3), from nothing but its own place.

    It never looks at another worker: round robin says which minibatches are its own, 1F1B in which
    order it runs them, and its own updates which weights it has. It owes at most ``in_flight``
    backwards.
    """
    width, tasks, owed, updates = replicas[stage], [], deque[Task](), 0

    def backward() -> None:
        nonlocal updates
        forward = owed.popleft()
        updates += 1
        last = min(updates * width, minibatches) - 1
        tasks.extend([forward._replace(op=Op.BACKWARD), Task(Op.UPDATE, stage, last, updates)])

    for k in range(replica, minibatches, width):
        if len(owed) == in_flight:
            backward()
        owed.append(Task(Op.FORWARD, stage, k, updates))
        tasks.append(owed[-1])
    while owed:
        backward()
    if 0 < updates < math.ceil(minibatches / width):  # others' minibatches are left over
        tasks.append(Task(Op.UPDATE, stage, minibatches - 1, updates + 1))
    return tuple(tasks)


def by_preference(
    stage_s: Sequence[tuple[int, int]], minibatches: int, prefer: Op, admitted: int | None = None
) -> Schedule:
    """Return what comes of always doing one kind of pass first (PipeDream, 3.3).

    Every worker, as soon as it is free, runs the pass it prefers if one is ready, else the other. A
    stage's forward and backward take ``stage_s`` whole time units; at most ``admitted`` minibatches
    are in the pipeline, None: as many as there are.
    """
    stages, limit = len(stage_s), admitted or minibatches
    lists: list[list[Task]] = [[] for _ in range(stages)]
    forwards, backwards, free = ([0] * stages for _ in range(3))
    ends: dict[tuple[Op, int, int], int] = {}
    reads: dict[tuple[int, int], int] = {}
    now = 0

    def arrived(op: Op, stage: int, k: int) -> bool:
        return ends.get((op, stage, k), math.inf) <= now

    def ready(op: Op, stage: int) -> bool:
        if op is Op.BACKWARD:
            k = backwards[stage]
            return k < forwards[stage] and (stage + 1 == stages or arrived(op, stage + 1, k))
        k = forwards[stage]
        admits = k - backwards[0] < limit
        return k < minibatches and (arrived(op, stage - 1, k) if stage else admits)

    def run(op: Op, stage: int) -> None:
        k = (forwards if op is Op.FORWARD else backwards)[stage]
        read = reads.setdefault((stage, k), backwards[stage])
        free[stage] = ends[op, stage, k] = now + stage_s[stage][op is Op.BACKWARD]
        lists[stage].append(Task(op, stage, k, read))
        if op is Op.FORWARD:
            forwards[stage] += 1
        else:
            backwards[stage] += 1
            lists[stage].append(Task(Op.UPDATE, stage, k, backwards[stage]))

    while min(backwards) < minibatches:
        for stage in range(stages):
            possible = [op for op in (Op.FORWARD, Op.BACKWARD) if ready(op, stage)]
            if free[stage] <= now and possible:
                run(prefer if prefer in possible else possible[0], stage)
        now += 1
    return Schedule(tuple(map(tuple, lists)), f"{prefer.name.lower()} first")
