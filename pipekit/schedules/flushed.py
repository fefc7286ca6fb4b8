"""Batches one after the other, an update behind each: what schedules with one version share."""

from collections.abc import Collection, Iterable

from pipekit.schedules.ops import OPS, Op
from pipekit.schedules.table import Contents
from pipekit.schedules.task import Task

Pass = tuple[Op, int, int]
"""An op, the stage, and the microbatch of the batch."""


def one_batch(
    name: str,
    workers: Iterable[Iterable[Pass]],
    overlaps: Collection[tuple[Pass, Pass]] = (),
) -> Contents:
    """Return the finite table of one batch: passes on version 0, followed by the updates.

    A worker makes the updates of its stages in the order in which their gradients are complete.

    Args:
        name: the method's.
        workers: of each worker, the passes in their order.
        overlaps: passes that run together, as :attr:`pipekit.schedules.Schedule.overlaps` has them.
    """
    lists = [[_task(each) for each in passes] for passes in workers]
    last = max((task.microbatch for tasks in lists for task in tasks), default=0)
    for tasks in lists:
        complete = {task.stage: n for n, task in enumerate(tasks) if OPS[task.op].adds_gradient}
        for stage in sorted(complete, key=complete.__getitem__):
            tasks.append(Task(Op.UPDATE, stage, last, 1))
    return Contents(
        tuple(map(tuple, lists)),
        name,
        overlaps=frozenset((_task(one), _task(other)) for one, other in overlaps),
    )


def flushed(
    name: str,
    workers: Iterable[Iterable[Pass]],
    overlaps: Collection[tuple[Pass, Pass]] = (),
) -> Contents:
    """Return the table without end whose every batch is :func:`one_batch`, on its own version."""
    batch = one_batch(name, workers, overlaps)
    return batch._replace(head=((),) * len(batch.head), period=batch.head)


def _task(each: Pass) -> Task:
    op, stage, microbatch = each
    return Task(op, stage, microbatch, 0)
