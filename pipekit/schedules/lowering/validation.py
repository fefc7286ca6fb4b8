"""Which tasks wait for an update that all stages have to agree on.

Gradients are clipped by their norm over all stages, and an update is skipped if the gradient of any
stage is not finite.  To wait for that is a global stop between two batches.  Instead a worker may
make the update at once, run forwards on the new weights, and validate later (Qi et al., "Zero
Bubble Pipeline Parallelism", section 4).  The engine waits; the simulator predicts both.
"""

from collections.abc import Sequence

from pipekit.schedules.dependencies import NOBODY, Dependencies
from pipekit.schedules.ops import Op
from pipekit.schedules.replay import Replay
from pipekit.schedules.schedule import Schedule


def validation_waits(schedule: Schedule, later: bool) -> dict[int, int]:
    """Return the tasks that wait until all workers have come to an update, and its number.

    They are the first update of each version, or if it is validated ``later``, the first task
    behind it that cannot be run again.
    """
    graph = schedule.dependencies
    found: dict[int, int] = {}
    newest = _newest(graph) if later else []
    for worker, tasks in enumerate(schedule.workers):
        if later:
            found |= _before_validation(schedule, worker, newest)
            continue
        seen: set[int] = set()
        for number, task in enumerate(tasks, graph.first[worker]):
            if not task.op.is_pass and task.version not in seen:
                found[number] = task.version
                seen.add(task.version)
    return found


def _newest(graph: Dependencies) -> list[int]:
    """Return for each task the newest version on which its result depends, on whatever stage."""
    newest = [0] * (len(graph.tasks) + 1)  # the last is found at NOTHING, -1
    for number in Replay(graph).order():
        version = graph.tasks[number].version
        newest[number] = max(version, newest[graph.own[number]], newest[graph.source[number]])
    return newest


def _before_validation(schedule: Schedule, worker: int, newest: Sequence[int]) -> dict[int, int]:
    """Return the tasks before which a worker validates an update, and its number.

    Only forwards that another stage waits for can be run again.  What depends on the update and
    adds gradients or leaves the pipeline comes after the validation, and so does a forward of a
    batch behind.  That costs nothing where every microbatch passes all stages: what has been
    through the last of them comes after all updates.
    """
    graph, found = schedule.dependencies, dict[int, int]()
    last = pending = 0  # the newest update, and the one that is to be validated
    batch = NOBODY  # that runs on it
    for number, task in enumerate(schedule.workers[worker], graph.first[worker]):
        if not task.op.is_pass:
            if task.version > last:  # of several stages, the first one's is begun for all
                if pending:
                    found[number] = pending
                last = pending = task.version
                batch = NOBODY
        elif pending and newest[number] >= pending:
            own = schedule.batch_of[task.microbatch]
            batch = own if batch == NOBODY else batch
            if task.op is not Op.FORWARD or graph.target[number] < 0 or own != batch:
                found[number], pending = pending, 0
    return found
