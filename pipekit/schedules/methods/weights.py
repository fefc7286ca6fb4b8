"""Weights that the workers of a data-parallel group share out: gathered for use, then given up."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from itertools import chain

from pipekit.schedules.methods.flushed import each_list, require_positive
from pipekit.schedules.methods.looped import looped_bfs
from pipekit.schedules.schedule import Schedule
from pipekit.schedules.task import ScheduleError, Task
from pipekit.schedules.transfers import DISCARD, GATHER, SUM


def sharded(schedule: Schedule, gathered: int = 3) -> Schedule:
    """Return a schedule in which each stage's weights are gathered before they are needed.

    A worker gathers ahead for its next passes and gives up what these do not need, so that it has
    the weights of ``gathered`` stages at most, one more where passes of two stages run together.
    Behind a stage's last backward its gradients are summed, while others compute (fully sharded
    data parallelism, Zhao et al., arXiv 2304.11277).  It is what ``torch.distributed.pipelining``
    adds to every table when it runs it, there for three stages.  Each worker of the table stands
    for a group, whose size and links ``Costs(shards=...)`` says.

    Args:
        schedule: by a method that flushes, with one update a batch.
        gathered: stages of a worker whose weights are whole at a time.

    Raises:
        ScheduleError: there is no such batch, or ``gathered`` is below 1.
    """
    require_positive(gathered=gathered)
    versions = {task.version for task in chain(*schedule.head, *schedule.period) if task.op.is_pass}
    if versions != {0}:
        raise ScheduleError(
            f"{schedule.title} reads weight versions {sorted(versions)} in what it repeats: shard "
            f"one batch, by a method that flushes"
        )
    second = {other for _, other in schedule.overlaps}
    made = each_list(schedule, lambda tasks: _with_gathers(_together(tasks, second), gathered))
    return replace(made, name=f"{schedule.name}, sharded")


def sharded_bfs(stages: int, microbatches: int, *, workers: int) -> Schedule:
    """Return the looped breadth-first schedule with sharded weights.

    Each stage's weights are gathered twice a batch, however many microbatches it has, beside the
    passes of the stage before, and its gradients are summed beside those of the next one
    (Lamy-Poirier, Breadth-First Pipeline Parallelism, MLSys 2023, arXiv 2211.05953).  The
    ``workers`` have two or more of the ``stages`` each, each batch has ``microbatches``.
    """
    return sharded(looped_bfs(stages, microbatches, workers=workers), gathered=2)


def _together(tasks: Sequence[Task], second: Collection[Task]) -> list[list[Task]]:
    """Return tasks one by one, but for those that run together with the one before."""
    found: list[list[Task]] = []
    for task in tasks:
        if task in second:
            found[-1].append(task)
        else:
            found.append([task])
    return found


def _with_gathers(together: Sequence[Sequence[Task]], gathered: int) -> Iterator[Task]:
    """Yield a worker's tasks, and what they need of weights."""
    last = {task.stage: task for task in chain(*together) if task.op.adds_gradient}
    here: dict[int, Task] = {}  # by stage whose weights are whole: its last pass, or the next
    for n, tasks in enumerate(together):
        soon = _next_stages(together[n:], gathered)
        for stage in [stage for stage in here if stage not in soon]:
            yield here.pop(stage)._replace(op=DISCARD)
        for stage in [stage for stage in soon if stage not in here]:
            here[stage] = soon[stage]
            yield soon[stage]._replace(op=GATHER)
        yield from tasks
        for task in tasks:
            if task.op.is_pass:
                here[task.stage] = task
            if task is last.get(task.stage):
                yield task._replace(op=SUM)


def _next_stages(together: Sequence[Sequence[Task]], count: int) -> dict[int, Task]:
    """Return the stages of the next passes, so many or one more, each with its first pass."""
    found: dict[int, Task] = {}
    for tasks in together:
        for task in tasks:
            if task.op.is_pass:
                found.setdefault(task.stage, task)
        if len(found) >= count:
            break
    return found
