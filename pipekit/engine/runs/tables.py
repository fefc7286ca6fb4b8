"""A schedule lowered to the steps of its workers, and the assignments that these have in a run.

What is found out about a schedule is kept with it.
"""

import sys
from collections.abc import Iterator, Sequence
from itertools import chain

from pipekit.engine import combinations
from pipekit.engine.assignment import WorkerAssignment, WorkerReport
from pipekit.engine.config import CheckpointConfig, Loss, Norm, RunConfig, RunTable, Start
from pipekit.engine.feed import BatchSource
from pipekit.engine.observers.reporter import Listener
from pipekit.engine.options import Watch
from pipekit.engine.runs.assembly import Parts
from pipekit.host.memory import not_collected
from pipekit.partition.partition import Partition, tie_ends
from pipekit.schedules import Schedule, ScheduleError, Steps, lower
from pipekit.schedules.lowering.boundaries import steps_after
from pipekit.schedules.lowering.lower import Skips, loss_versions
from pipekit.schedules.lowering.recurring import Recurring
from pipekit.schedules.lowering.sums import sum_order, sums
from pipekit.staleness import Update

Lowered = tuple[Sequence[Steps], RunTable]
"""Every worker's steps, and what all workers know of the table."""


def taken(schedule: Schedule, batches: int) -> Schedule:
    """Return the finite schedule for a number of batches; the last one is kept."""
    if not schedule.period:
        if len(schedule) != batches:
            raise ScheduleError(
                f"the schedule is for {len(schedule)} batches and there are {batches}: pass one "
                f"without end, as schedules.flush(stages, microbatches) is, or make one of a "
                f"batch by repeat()"
            )
        return schedule
    with not_collected():
        return schedule.remembered("taken", lambda: schedule.take(batches), batches)


def lowered_for(parts: Parts, schedule: Schedule, joints: Partition) -> Lowered:
    """Return a schedule lowered for a pipeline's stages, which may have to update together."""
    for tie in joints.ties:
        if rule := parts.updates.rule:
            late = {stage: parts.delays[stage] for stage in tie.stages}
            rates = {rule.rate(Update(n, schedule.stages, late[n], 0, 0, 0)) for n in late}
            if len(rates) > 1 or (rule.overrides("gradient") and len({*late.values()}) > 1):
                combinations.require_compatible({combinations.BY_DELAY, combinations.TIES})
    features = parts.joint | ({combinations.TIES} if joints.ties else set())
    for feature in features if schedule.trains else ():
        combinations.require_joint_updates(schedule, feature)
    skips = [(skip.source, skip.destination) for skip in joints.skips]
    ties = tie_ends(joints.ties) if joints.ties else ()
    return lowered(schedule, skips, ties, bool(features))


def lowered(schedule: Schedule, skips: Skips, ties: Skips, joint_updates: bool) -> Lowered:
    """Return a schedule lowered, with skip connections between stages and weights they share."""

    def find() -> Lowered:
        with not_collected():  # a long table is many small objects
            steps, summed = lower(schedule, skips, ties), sums(schedule)
            order = sum_order(schedule, joint_updates)
        return steps, RunTable(
            workers=schedule.worker_count,
            stage_workers=schedule.stage_workers,
            shared=any(len(workers) > 1 for workers in schedule.stage_workers),
            busy=tuple(sorted({*chain(*schedule.stage_workers)})),
            links=frozenset(
                (sender, receiver)
                for sender, own in enumerate(steps)
                for step in own.distinct
                for _, receiver in step.sends
            ),
            sums=summed,
            averages=any(each.batches > 1 for one in summed for each in (*one.head, *one.period)),
            sum_order=order,
            moves=any(op.moves for op in schedule.ops),
        )

    return schedule.remembered(("lowered", tuple(skips), tuple(ties), joint_updates), find)


def executed(
    parts: Parts,
    start: Start,
    source: BatchSource,
    loss: Loss,
    watch: Watch,
    on_news: Listener | None = None,
    checkpoints: CheckpointConfig | None = None,
) -> list[WorkerReport]:
    """Have the workers execute a schedule, and return every worker's report."""
    schedule, model = start.schedule, parts.model
    assert model.partition, "prepare() comes first"
    steps, table = lowered_for(parts, schedule, model.partition)
    known = source.total if schedule.period else None
    is_scaled = parts.updates.scale and schedule.trains
    config = RunConfig(
        table=table,
        loss=loss,
        updates=parts.updates,
        execution=parts.execution,
        watch=watch,
        training=schedule.trains,
        first_microbatch=start.microbatches,
        norm=model.norm if parts.joint else Norm(),
        loss_versions=scale_versions(schedule) if is_scaled else None,
        ties=model.partition.ties,
        checkpoints=checkpoints,
        begin=start.begin,
        resumed=start.checkpoint,
        possible_stops=source.possible_stops,
        batches=0 if schedule.period else len(schedule.batches),
        end=schedule.batch(known - 1).stop if known else sys.maxsize,
    )
    assignments = []
    for worker, own in enumerate(steps):
        stages = dict(model.of_worker(worker, schedule.stage_workers))
        assignments.append(
            WorkerAssignment(
                index=worker,
                steps=steps_after(own, start.begin) if start.checkpoint else own,
                device=parts.devices[worker],
                devices=parts.devices,
                chunks=schedule.chunks,
                stages=stages if schedule.trains else {},
                inference=() if schedule.trains else [s.config.passes for s in stages.values()],
            )
        )
    return parts.runner.run(assignments, config, source, on_news)


def scale_versions(schedule: Schedule) -> Recurring[int]:
    """Return the version whose loss scale each update's losses have."""
    return schedule.remembered("loss versions", lambda: loss_versions(schedule))


def batches_done(schedule: Schedule, end: int) -> Iterator[range]:
    """Yield the microbatches of each batch that a run has trained on, which ends before one."""
    for batch in schedule.each_batch():
        if (batch.start if schedule.period else batch.stop - 1) >= end:
            return
        yield batch
