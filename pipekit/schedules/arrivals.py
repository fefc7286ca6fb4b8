"""The proof that tasks find what they need, and updates the gradients that workers send on."""

from collections import defaultdict, deque

from pipekit.schedules.dependencies import Dependencies
from pipekit.schedules.ops import SENT_GRADIENTS
from pipekit.schedules.replay import Replay
from pipekit.schedules.task import ScheduleError


def require_items(graph: Dependencies) -> None:
    """Raise for a task that needs what is not there, or sends what nobody takes."""
    others = range(len(graph.first) - 1)
    for number in graph.of(lambda op: op.peer is not None):
        task, worker = graph.tasks[number], graph.worker_of[number]
        if task.op.peer not in others or task.op.peer == worker:
            raise ScheduleError(
                f"worker {worker} has {task}: it needs another one of the {len(others)} workers "
                f"for a peer",
                graph.placed(number),
            )
    for number, item, before in graph.missing:
        task, worker = graph.tasks[number], graph.worker_of[number]
        lacks = f"worker {worker} has {task}, which needs {item.name} there"
        if before is None:
            raise ScheduleError(f"{lacks}, and no task before it gives them", [(task, worker)])
        why = f"{graph.tasks[before]} has taken them"
        if item in graph.tasks[before].op.gives:
            why = f"{graph.tasks[before]} has given those of version {graph.tasks[before].version}"
        raise ScheduleError(f"{lacks}, and {why}", graph.placed(number, before))
    for number in graph.untaken:
        task, worker = graph.tasks[number], graph.worker_of[number]
        raise ScheduleError(
            f"worker {worker} has {task}, and worker {task.op.peer} takes no such thing from it",
            graph.placed(number),
        )


def require_gradients(graph: Dependencies) -> None:
    """Raise for an update of borrowed weights that lacks a gradient which it should sum."""
    travels = {graph.tasks[number].stage for number in graph.of(lambda op: op.borrows)}
    if not travels:
        return
    here: dict[tuple[int, int], set[int]] = defaultdict(set)  # by worker and stage
    sent: dict[tuple[int | None, int | None, int], deque[set[int]]] = defaultdict(deque)
    come: dict[tuple[int, int], set[int]] = defaultdict(set)  # by stage and version
    for number in Replay(graph).order():
        (op, stage, microbatch, version), worker = graph.tasks[number], graph.worker_of[number]
        if op.adds_gradient:
            here[worker, stage].add(microbatch)
        elif SENT_GRADIENTS in op.gives:
            sent[worker, op.peer, stage].append(here.pop((worker, stage), set()))
        elif SENT_GRADIENTS in op.takes:
            here[worker, stage] |= sent[op.peer, worker, stage].popleft()
        elif not op.is_pass:
            come[stage, version] |= here.pop((worker, stage), set())
    for number in graph.of(lambda op: not op.is_pass):
        task = graph.tasks[number]
        summed = {graph.tasks[each].microbatch for each in graph.summed(number)}
        if task.stage in travels and (lacking := summed - come[task.stage, task.version]):
            raise ScheduleError(
                f"worker {graph.worker_of[number]} has {task}, and the gradient of microbatch "
                f"{min(lacking)} has not been sent to it",
                graph.placed(number),
            )
