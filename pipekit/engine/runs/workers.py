"""The workers of a pipeline, as the calling program sees them."""

import sys
from collections.abc import Sequence
from contextlib import closing, nullcontext
from functools import partial

import torch

from pipekit.engine import arguments, combinations
from pipekit.engine.assignment import WorkerAssignment, WorkerReport
from pipekit.engine.checkpoints.resume_point import Extent, ResumePoint
from pipekit.engine.config import CheckpointConfig, Loss, PossibleStops, RunConfig
from pipekit.engine.observers.reporter import Listener, LossBar, OnBatch
from pipekit.engine.options import Execution, Updates, Watch
from pipekit.engine.runs.batch_source import BatchSource, Read
from pipekit.engine.runs.chunks import require_same_in_chunks
from pipekit.engine.runs.model_stages import ModelStages
from pipekit.engine.runs.questions import FirstBatch, ask_loss, ask_optimizer, warn_of_mode
from pipekit.engine.runs.tables import Tables
from pipekit.engine.runs.users_model import UsersAttributes, watched
from pipekit.engine.transports.runner import Runner
from pipekit.layers.pass_state import warn_of_modes
from pipekit.layers.seeded import drawn_since, numbers_so_far
from pipekit.schedules import Schedule, Steps


class Workers:
    """Execute schedules on the stages of a model."""

    def __init__(
        self,
        tables: Tables,
        model: ModelStages,
        runner: Runner,
        devices: Sequence[torch.device],
        loss: Loss,
        updates: Updates,
        execution: Execution,
    ) -> None:
        self._tables, self._model, self._runner, self._devices = tables, model, runner, devices
        self._loss, self._updates, self._execution = loss, updates, execution
        self._attributes = UsersAttributes(model.original)
        self.close = runner.close
        asked = {
            combinations.CLIP: updates.clip_norm is not None,
            combinations.SCALE: updates.scale,
        }
        self._joint = combinations.features(asked)
        self._require_joint(tables.schedule)

    def ready(self, extent: Extent, read: Read, point: ResumePoint | None) -> BatchSource:
        """Return a run's batches, checked; the first one serves to build the stages if need be.

        Raises:
            ScheduleError: stages have to update together, and the schedule does not let them.
            ValueError: there are no batches, or too few for a mitigation.
        """
        schedule = extent.start.schedule
        size = len(next(schedule.each_batch()))
        arguments.require_no_autocast(self._execution.autocast, self._devices)
        warn_of_modes()
        numbers = numbers_so_far()
        try:
            first = read(next(extent.batches), size, 0)
        except StopIteration:
            raise ValueError(arguments.NO_BATCHES) from None
        drawn = drawn_since(numbers)
        sample = first.cut_input()[0]
        if changed := self._attributes.taken():
            self._model.set_attributes(changed)
        tried = self._model.prepare(sample, self._execution.autocast, point, schedule.trains)
        self._attributes.warn(tried)
        if schedule.trains:
            self._require_joint(schedule)
            if self._updates.rule:
                arguments.require_whole_rounds(self._updates.rule, schedule)
            if tried is not None:
                if needed := tried.needed_weights:
                    arguments.require_weights_as_read(needed, self._model.configs, schedule)
                model, dtype = self._model, self._execution.autocast
                evaluate = partial(model.probe, autocast=dtype)
                balance = (model.balance or ()) if len(self._devices) > 1 else ()
                asked = FirstBatch(first, tried, evaluate, model.original, dtype, balance, drawn)
                if schedule.chunks > 1:
                    require_same_in_chunks(first, schedule.chunks, evaluate)
                if model.was_evaluating:
                    warn_of_mode(asked)
                ask_loss(self._loss, asked)
                ask_optimizer(model.configs)
        stops = self._possible_stops(extent)
        return BatchSource(first, extent.batches, schedule.each_batch, extent.total, stops, read)

    @property
    def can_end(self) -> bool:
        """Whether the transport lets a run end before its table."""
        return self._runner.can_end(self._devices)

    def _possible_stops(self, extent: Extent) -> PossibleStops:
        """Return where a run may end early."""
        start = extent.start
        if not start.schedule.trains or not self.can_end:
            return PossibleStops()
        begin = start.resume.boundary.microbatches if start.resume else 0
        return self._tables.possible_stops(start.schedule, begin)

    def train(
        self,
        extent: Extent,
        batches: BatchSource,
        watch: Watch,
        on_batch: OnBatch | None,
        checkpoints: CheckpointConfig | None,
    ) -> list[WorkerReport]:
        """Train; the model's stages are then those after the run."""
        resume = extent.start.resume
        if on_batch and self._runner.copies_loss:
            on_batch = watched(on_batch, self._loss)
        bar = None
        if watch.progress or on_batch:
            bar = LossBar(
                map(len, batches.each_batch()),
                batches.total,
                watch.progress,
                on_batch,
                resume.boundary.batches if resume else 0,
                batches.rows,
                batches.stop if batches.may_end else self._refuse_to_stop,
            )
        with closing(bar) if bar else nullcontext():
            reports = self.run(
                extent,
                batches,
                self._loss,
                watch,
                on_news=bar.add if bar else None,
                checkpoints=checkpoints,
            )
        self._model.take(reports)
        if on_batch:
            self._attributes.warn_within()
        return reports

    def run(
        self,
        extent: Extent,
        batches: BatchSource,
        loss: Loss,
        watch: Watch,
        *,
        on_news: Listener | None = None,
        checkpoints: CheckpointConfig | None = None,
    ) -> list[WorkerReport]:
        """Execute a schedule, and return every worker's report."""
        start = extent.start
        schedule, resume = start.schedule, start.resume
        partition = self._model.partition
        assert partition, "ready() comes first"
        ends = partition.skip_ends, partition.tie_ends
        table = self._tables.table(schedule, *ends, bool(self._joint_features()))
        steps, run_table = table.begun(resume.boundary if resume else None)
        scaled = self._updates.scale is not None and schedule.trains
        total = extent.total if schedule.period else None
        config = RunConfig(
            table=run_table,
            loss=loss,
            updates=self._updates,
            execution=self._execution,
            watch=watch,
            training=schedule.trains,
            first_microbatch=start.microbatches,
            parameters=self._model.trained,
            norm_dtype=self._model.norm_dtype,
            loss_versions=table.loss_versions if scaled else None,
            ties=partition.ties,
            checkpoints=checkpoints,
            resume=resume,
            possible_stops=self._possible_stops(extent),
            batches=0 if schedule.period else len(schedule.batches),
            end=schedule.batch(total - 1).stop if total else sys.maxsize,
        )
        assignments = [
            self._assignment(worker, each, schedule) for worker, each in enumerate(steps)
        ]
        return self._runner.run(assignments, config, batches, on_news)

    def _assignment(self, worker: int, steps: Steps, schedule: Schedule) -> WorkerAssignment:
        stages = list(self._model.of_worker(worker, schedule.stage_workers))
        return WorkerAssignment(
            index=worker,
            steps=steps,
            device=self._devices[worker],
            devices=self._devices,
            chunks=schedule.chunks,
            stages=stages if schedule.trains else (),
            inference=() if schedule.trains else [stage.config.passes for stage in stages],
        )

    def _require_joint(self, schedule: Schedule) -> None:
        """Raise ScheduleError if stages have to update together and cannot."""
        for feature in self._joint_features():
            combinations.require_joint_updates(schedule, feature)

    def _joint_features(self) -> set[str]:
        """Return the features that need all stages to update together."""
        return self._joint | ({combinations.TIES} if self._model.ties else set())

    def _refuse_to_stop(self, error: Exception | None) -> None:
        if error:
            raise error
        raise RuntimeError(str(combinations.conflict({combinations.STOP, combinations.TORCHRUN})))
