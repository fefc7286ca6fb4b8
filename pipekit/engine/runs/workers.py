"""The workers of a pipeline, as the calling program sees them."""

import sys
from collections.abc import Sequence
from contextlib import closing, nullcontext
from dataclasses import replace
from functools import partial

from pipekit.engine import arguments, combinations
from pipekit.engine.assignment import WorkerAssignment, WorkerReport
from pipekit.engine.checkpoints.resume_point import ResumePoint
from pipekit.engine.config import CheckpointConfig, Extent, Loss, Norm, RunConfig
from pipekit.engine.feed import BatchSource, Read
from pipekit.engine.observers.reporter import Listener, LossBar, OnBatch
from pipekit.engine.options import Watch
from pipekit.engine.runs.assembly import Parts
from pipekit.engine.runs.model_stages import Joints
from pipekit.engine.runs.questions import FirstBatch, ask
from pipekit.engine.runs.tables import LoweredTable, lowered
from pipekit.engine.runs.users_model import watched
from pipekit.engine.stops import PossibleStops, possible_stops, stops_anywhere
from pipekit.layers.pass_state import warn_of_modes
from pipekit.layers.seeded import drawn_since, numbers_so_far
from pipekit.partition.partition import Partition, Tie, tie_ends
from pipekit.schedules import Schedule
from pipekit.schedules.lowering.boundaries import steps_after


class Workers:
    """Execute schedules on the stages of a model.

    Attributes:
        can_end: whether the transport lets a run end before its table.
        stop_anywhere: whether a run without end may do so before each batch.
        close: ends those that wait for the next run.
    """

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self.close = parts.runner.close
        self.can_end = parts.runner.can_end(parts.devices)
        schedule, updates = parts.schedule, parts.updates
        asked = {
            combinations.CLIP: updates.clip_norm is not None,
            combinations.SCALE: updates.scale,
        }
        self._joint = combinations.features(asked)
        joints = parts.model.joints
        self._require_joint(schedule, joints.ties if joints else ())
        endless = bool(schedule.period)
        self.stop_anywhere = endless and self.can_end and stops_anywhere(schedule)
        # Else the first run decides: by its length, or by the balance that its data tell.
        if joints is not None and (self.stop_anywhere or not endless):
            self._lowered(schedule, joints)
            if self.can_end:
                possible_stops(schedule)

    def ready(self, extent: Extent, read: Read, point: ResumePoint | None) -> BatchSource:
        """Return a run's batches, checked; the first one serves to build the stages if need be.

        Raises:
            ScheduleError: stages have to update together, and the schedule does not let them.
            ValueError: there are no batches, or too few for a mitigation.
        """
        parts, (start, batches, total) = self._parts, extent
        schedule, autocast, model = start.schedule, parts.execution.autocast, parts.model
        arguments.require_no_autocast(autocast, parts.devices[0].type)
        warn_of_modes()
        numbers = numbers_so_far()
        try:
            first = read(next(batches), len(next(schedule.each_batch())), 0)
        except StopIteration:
            raise ValueError(arguments.NO_BATCHES) from None
        drawn = drawn_since(numbers)
        if changed := model.users.taken():
            model.set_attributes(changed)
        tried = model.prepare(first.cut_input()[0], autocast, point, schedule.trains)
        model.users.warn(tried, lambda: model.modules)
        stops = PossibleStops()
        if schedule.trains:
            assert model.partition
            self._require_joint(schedule, model.partition.ties)
            if parts.updates.rule:
                arguments.require_whole_rounds(parts.updates.rule, schedule)
            if tried is not None:
                evaluate = partial(model.probe, autocast=autocast)
                balance = (model.balance or ()) if len(parts.devices) > 1 else ()
                about = first, tried, evaluate, model.original, autocast, balance, drawn
                ask(parts.loss, parts.optimizer, model, schedule, FirstBatch(*about))
            if self.can_end:
                stops = possible_stops(schedule)
            if start.resume:
                stops = replace(stops, begin=start.resume.boundary.microbatches)
        return BatchSource(first, batches, schedule.each_batch, total, stops, read)

    def train(
        self,
        extent: Extent,
        batches: BatchSource,
        watch: Watch,
        on_batch: OnBatch | None,
        checkpoints: CheckpointConfig | None,
    ) -> list[WorkerReport]:
        """Train; the model's stages are then those after the run."""
        parts, resume = self._parts, extent.start.resume
        if on_batch and parts.runner.copies_loss:
            on_batch = watched(on_batch, parts.loss)
        bar = None
        if watch.progress or on_batch:
            bar = LossBar(
                map(len, batches.each_batch()),
                batches.total,
                watch.progress,
                on_batch,
                resume.boundary.batches if resume else 0,
                batches.rows,
                batches.stop if batches.possible_stops.batches else _refuse_to_stop,
            )
        with closing(bar) if bar else nullcontext():
            told = bar.add if bar else None
            reports = self.run(extent, batches, parts.loss, watch, told, checkpoints)
        parts.model.take(reports)
        if on_batch:
            parts.model.users.warn_within()
        return reports

    def run(
        self,
        extent: Extent,
        batches: BatchSource,
        loss: Loss,
        watch: Watch,
        on_news: Listener | None = None,
        checkpoints: CheckpointConfig | None = None,
    ) -> list[WorkerReport]:
        """Execute a schedule, and return every worker's report."""
        parts, start = self._parts, extent.start
        schedule, resume, model = start.schedule, start.resume, parts.model
        assert model.partition, "ready() comes first"
        table = self._lowered(schedule, model.partition)
        steps, common = table.steps, table.common
        if resume:
            steps = [steps_after(each, resume.boundary) for each in steps]
            common = replace(common, made=resume.boundary.versions)
        scaled = parts.updates.scale is not None and schedule.trains
        total = extent.total if schedule.period else None
        config = RunConfig(
            table=common,
            loss=loss,
            updates=parts.updates,
            execution=parts.execution,
            watch=watch,
            training=schedule.trains,
            first_microbatch=start.microbatches,
            norm=model.norm if self._joint else Norm(),
            loss_versions=table.loss_versions if scaled else None,
            ties=model.partition.ties,
            checkpoints=checkpoints,
            resume=resume,
            possible_stops=batches.possible_stops,
            batches=0 if schedule.period else len(schedule.batches),
            end=schedule.batch(total - 1).stop if total else sys.maxsize,
        )
        assignments = []
        for worker, own in enumerate(steps):
            stages = dict(model.of_worker(worker, schedule.stage_workers))
            assignments.append(
                WorkerAssignment(
                    index=worker,
                    steps=own,
                    device=parts.devices[worker],
                    devices=parts.devices,
                    chunks=schedule.chunks,
                    stages=stages if schedule.trains else {},
                    slots=table.slots[worker],
                    inference=()
                    if schedule.trains
                    else [each.config.passes for each in stages.values()],
                )
            )
        return parts.runner.run(assignments, config, batches, on_news)

    def _lowered(self, schedule: Schedule, joints: Joints | Partition) -> LoweredTable:
        """Return a schedule's steps for stages that are joined."""
        ends = [(skip.source, skip.destination) for skip in joints.skips]
        joint = bool(self._joint or joints.ties)
        return lowered(schedule, ends, tie_ends(joints.ties), joint)

    def _require_joint(self, schedule: Schedule, ties: Sequence[Tie]) -> None:
        """Raise ScheduleError if stages have to update together and cannot."""
        for feature in self._joint | ({combinations.TIES} if ties else set()):
            combinations.require_joint_updates(schedule, feature)


def _refuse_to_stop(error: Exception | None) -> None:
    if error:
        raise error
    raise RuntimeError(str(combinations.conflict({combinations.STOP, combinations.TORCHRUN})))
