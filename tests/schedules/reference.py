"""Schedules judged by brute force, from the definitions: nothing here calls pipekit's own judges.

A clock that ticks, a graph that is sorted, a list of versions that is counted at every point.  A
backward is whole, or one for the input and, after it, one for the weights: the gradient that goes
to the stage before comes from the first of these, and what an update sums from the second.
"""

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Sequence
from graphlib import CycleError, TopologicalSorter

from pipekit.schedules import Op, Schedule, ScheduleError, Task
from pipekit.schedules.ops import PASSES

FORWARD, WHOLE, INPUT, WEIGHTS, UPDATE = *PASSES, Op.UPDATE
BACKWARDS = (WHOLE, INPUT, WEIGHTS)

Key = tuple[Op, int, int]  # op, stage, microbatch of a pass
Node = tuple[int, int]  # worker, position in its list


def refusal(judge: Callable[[], object]) -> str | None:
    """Return what the ScheduleError of a call says, or None if it raises none."""
    try:
        judge()
    except ScheduleError as error:
        return str(error)
    return None


def key(task: Task) -> Key:
    return task.op, task.stage, task.microbatch


def halves(schedule: Schedule) -> set[tuple[int, int]]:
    """Return (stage, microbatch) of every backward that stands in the table in two parts."""
    tasks = [task for worker in schedule.workers for task in worker]
    return {(t.stage, t.microbatch) for t in tasks if t.op in (INPUT, WEIGHTS)}


def needs(task: Task, stages: int, split: set[tuple[int, int]]) -> list[Key]:
    """Return what must be done before a task can run (GPipe, Figure 2a).

    Args:
        task: the task.
        stages: how many the schedule has.
        split: what :func:`halves` says.
    """
    op, stage, k, _ = task
    if op is UPDATE:
        return [(WEIGHTS if (stage, i) in split else WHOLE, stage, i) for i in range(k + 1)]
    if op is FORWARD:
        return [(FORWARD, stage - 1, k)] if stage else []
    if op is WEIGHTS:
        return [(INPUT, stage, k)]
    behind = INPUT if (stage + 1, k) in split else WHOLE
    after = [(behind, stage + 1, k)] if stage + 1 < stages else []
    return [(FORWARD, stage, k), *after]


def ticking(
    schedule: Schedule, forward: int = 1, backward: int = 2, inputs: int = 1, weights: int = 1
) -> dict[Key, tuple[int, int]]:
    """Return each pass's (start, end) in slots from 0, by looking at every worker in every slot."""
    length = {FORWARD: forward, WHOLE: backward, INPUT: inputs, WEIGHTS: weights, UPDATE: 0}
    split = halves(schedule)
    lists = [deque(tasks) for tasks in schedule.workers]
    free = [0] * len(lists)
    times: dict[Key, tuple[int, int]] = {}
    now = 0
    while any(lists):
        started = True
        while started:
            started = False
            for worker, tasks in enumerate(lists):
                if not tasks or free[worker] > now:
                    continue
                wanted = needs(tasks[0], schedule.stages, split)
                if all(w in times and times[w][1] <= now for w in wanted):
                    task = tasks.popleft()
                    free[worker] = now + length[task.op]
                    if task.op is not UPDATE:
                        times[key(task)] = now, free[worker]
                    started = True
        now += 1
        assert now <= 4 * sum(length.values()) * sum(map(len, schedule.workers)), "deadlock"
    return times


def versions_alive(tasks: Sequence[Task]) -> list[set[int]]:
    """Return the versions of a one-stage worker that are needed after each of its tasks.

    A version is needed while it is the newest, and as long as a later task reads it.
    """
    alive = []
    newest = 0
    for position, task in enumerate(tasks):
        if task.op is UPDATE:
            newest = task.version
        later = {t.version for t in tasks[position + 1 :] if t.op is not UPDATE}
        alive.append({newest} | {version for version in later if version < newest})
    return alive


def in_flight(tasks: Sequence[Task]) -> list[int]:
    """Return how many microbatches are forward but not wholly backward after each task."""
    done = [Counter(t.op for t in tasks[: i + 1]) for i in range(len(tasks))]
    return [count[FORWARD] - count[WHOLE] - count[WEIGHTS] for count in done]


def finishes(schedule: Schedule, capacity: int | None = None) -> bool:
    """Return whether worker order, data order and full links form no circle.

    A worker's n-th send on a link waits until the receiver has taken the (n - capacity)-th message.
    """
    split = halves(schedule)
    where = {
        key(task): (worker, position)
        for worker, tasks in enumerate(schedule.workers)
        for position, task in enumerate(tasks)
        if task.op is not UPDATE
    }
    graph: dict[Node, set[Node]] = {}
    sends: dict[tuple[int, int], list[Node]] = defaultdict(list)
    receipts: dict[tuple[int, int], list[Node]] = defaultdict(list)
    for worker, tasks in enumerate(schedule.workers):
        for position, task in enumerate(tasks):
            node = worker, position
            graph[node] = {where[w] for w in needs(task, schedule.stages, split)}
            if position:
                graph[node].add((worker, position - 1))
            if task.op in (WEIGHTS, UPDATE):
                continue
            way = 1 if task.op is FORWARD else -1

            def other(stage: int, task: Task = task, node: Node = node) -> int:
                """Return the worker at the other end of a message, or the task's own."""
                op = task.op if task.op is FORWARD else WHOLE
                if op is WHOLE and (stage, task.microbatch) in split:
                    op = INPUT
                return where.get((op, stage, task.microbatch), node)[0]

            receiver, sender = other(task.stage + way), other(task.stage - way)
            if receiver != worker:
                sends[worker, receiver].append(node)
            if sender != worker:
                receipts[sender, worker].append(node)
    if capacity is not None:
        for link, nodes in sends.items():
            for node, receipt in zip(nodes[capacity:], receipts[link], strict=False):
                graph[node].add(receipt)
    try:
        TopologicalSorter(graph).prepare()
    except CycleError:
        return False
    return True


def executable(schedule: Schedule) -> bool:
    """Return whether a schedule with weight stashing can be executed and means one thing."""
    tasks = [task for worker in schedule.workers for task in worker]
    if not tasks or any(min(task[1:]) < 0 for task in tasks):
        return False
    stages, microbatches = 1 + max(t.stage for t in tasks), 1 + max(t.microbatch for t in tasks)
    trains = any(t.op in BACKWARDS for t in tasks)
    passes = Counter(key(t) for t in tasks if t.op is not UPDATE)
    split = halves(schedule)
    wanted: list[Key] = []
    for s in range(stages):
        for k in range(microbatches):
            back = [INPUT, WEIGHTS] if (s, k) in split else [WHOLE]
            wanted += [(op, s, k) for op in [FORWARD, *(back if trains else [])]]
    if passes != Counter(wanted):
        return False
    homes = [{t.stage for t in worker} for worker in schedule.workers]
    if sum(map(len, homes)) != stages:
        return False
    updates = [
        [(t.version, t.microbatch) for t in tasks if t.op is UPDATE and t.stage == stage]
        for stage in range(stages)
    ]
    if any(u != updates[0] for u in updates) or bool(updates[0]) != trains:
        return False
    summed = [last for _, last in updates[0]]
    if [v for v, _ in updates[0]] != list(range(1, len(summed) + 1)):
        return False
    if trains and (sorted(set(summed)) != summed or summed[-1] != microbatches - 1):
        return False
    return finishes(schedule) and all(map(_reads_what_is_there, schedule.workers))


def _reads_what_is_there(tasks: Sequence[Task]) -> bool:
    newest: dict[int, int] = defaultdict(int)
    forward: dict[tuple[int, int], int] = {}
    for op, stage, k, version in tasks:
        if op is UPDATE:
            newest[stage] = version
        elif version > newest[stage] or forward.setdefault((stage, k), version) != version:
            return False
    return True
