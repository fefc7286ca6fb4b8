"""Batches one after the other, an update behind each: what tables with one version share."""

from collections.abc import Collection, Iterable

from pipekit.schedules.ops import OPS, Op
from pipekit.schedules.repeated import repeat
from pipekit.schedules.table import Contents
from pipekit.schedules.task import Task

Pass = tuple[Op, int, int]
"""An op, the stage, and the microbatch, from 0 in each batch."""


def flushed(
    name: str,
    workers: Iterable[Iterable[Pass]],
    microbatches: int,
    batches: int,
    overlaps: Collection[tuple[Pass, Pass]] = (),
) -> Contents:
    """Return the table whose every batch has the same passes, followed by the updates.

    Every microbatch of batch ``t`` reads version ``t``.  A worker makes the updates of its stages
    in the order in which their gradients are complete.

    Args:
        name: the method's.
        workers: of each worker, the passes of one batch in their order.
        microbatches: microbatches in each batch.
        batches: how many batches.
        overlaps: passes of one batch that run together, as
            :attr:`pipekit.schedules.Schedule.overlaps` has them.
    """

    def task(each: Pass, batch: int) -> Task:
        op, stage, k = each
        return Task(op, stage, batch * microbatches + k, batch)

    def first(passes: list[Pass]) -> list[Task]:
        complete = {s: n for n, (op, s, _) in enumerate(passes) if OPS[op].adds_gradient}
        updates = sorted(complete, key=complete.__getitem__)
        return [
            *(task(each, 0) for each in passes),
            *(Task(Op.UPDATE, stage, microbatches - 1, 1) for stage in updates),
        ]

    return Contents(
        tuple(repeat(first(list(passes)), batches, microbatches, versions=1) for passes in workers),
        name,
        overlaps=frozenset(
            (task(one, batch), task(other, batch))
            for one, other in overlaps
            for batch in range(batches)
        ),
    )
