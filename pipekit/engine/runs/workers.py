"""The workers of a pipeline, as the program sees them that trains by it."""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from pipekit.clusters import Cluster
from pipekit.devices import to_device
from pipekit.engine import arguments
from pipekit.engine.batches import Batch, part_sizes, split
from pipekit.engine.checkpoints.resume_point import ResumePoint
from pipekit.engine.config import CheckpointConfig, Loss, ResumeConfig, RunConfig
from pipekit.engine.ending import Ends
from pipekit.engine.observers.loss_bar import LossBar, OnBatch
from pipekit.engine.observers.reporter import Listener
from pipekit.engine.runs.batch_source import BatchSource, Read
from pipekit.engine.runs.model_stages import ModelStages
from pipekit.engine.runs.tables import Tables, end_of, links
from pipekit.engine.transports.runner import Runner
from pipekit.engine.work import Report, WorkerAssignment
from pipekit.layers.autocast import autocast
from pipekit.losses.parts import is_mean, is_torchs, warn_of_other_means
from pipekit.schedules import Schedule
from pipekit.staleness import Mitigation
from pipekit.trees import Tree, leaves


class Workers:
    """Have the stages of a model execute schedules.

    Args:
        tables: the schedules.
        model: the stages.
        runner: runs workers.
        devices: of the workers.
        loss: in training.
        autocast: what operators compute in where that is safe, or None.
        clip_norm: largest norm of an update's gradient over all stages, or None.
        is_scaled: whether losses are scaled.
        validate_later: whether updates are made before all stages have agreed to them.
        cluster: links to slow the messages between workers down to, or None.
        timeout: seconds without progress after which a run fails, or None.
        mitigation: what is done about stale weights, or None.
    """

    def __init__(
        self,
        tables: Tables,
        model: ModelStages,
        runner: Runner,
        devices: Sequence[torch.device],
        *,
        loss: Loss,
        autocast: torch.dtype | None,
        clip_norm: float | None,
        is_scaled: bool,
        validate_later: bool,
        cluster: Cluster | None,
        timeout: float | None,
        mitigation: Mitigation | None = None,
    ) -> None:
        self._tables, self._model, self._runner, self._devices = tables, model, runner, devices
        self._loss, self._autocast, self._cluster = loss, autocast, cluster
        self._clip_norm, self._is_scaled = clip_norm, is_scaled
        self._validate_later = validate_later and (is_scaled or clip_norm is not None)
        self._timeout, self._mitigation = timeout, mitigation
        self._require_joint(tables.schedule)

    def ready(
        self,
        schedule: Schedule,
        raw: Iterator[Any],
        read: Read,
        point: ResumePoint | None,
        resume: ResumeConfig | None = None,
        begin: int = 0,
        total: int | None = None,
    ) -> BatchSource:
        """Return the batches, checked; the first one serves to build the stages, if need be.

        Args:
            schedule: by which they are run.
            raw: the user's.
            read: reads one of them.
            point: where optimizers that are built go on from, or None.
            resume: where the run is taken up again, or None.
            begin: the run's first microbatch, where one by a schedule without end goes on.
            total: how many batches there have to be; None: as many as there are.

        Raises:
            ScheduleError: stages have to update together, and the schedule does not let them.
            ValueError: there are no batches, or too few for a mitigation.
        """
        size = len(next(schedule.each_batch(begin)))
        arguments.require_no_autocast(self._autocast, self._devices)
        try:
            first = read(next(raw), size, 0)
        except StopIteration:
            raise ValueError(arguments.NO_BATCHES) from None
        sample = split(first.input, first.parts, first.rows)[0]
        output = self._model.prepare(sample, self._autocast, point, schedule.trains)
        if schedule.trains:
            self._require_joint(schedule)
            arguments.require_whole_rounds(self._mitigation, schedule)
            if output is not None and first.parts > 1 and is_torchs(self._loss):
                self._compare_losses(first, output)
        ends = self._ends(schedule, resume, begin)
        each = partial(schedule.each_batch, begin)
        return BatchSource(first, raw, each, total, ends, read, begin)

    def _compare_losses(self, batch: Batch, output: Tree) -> None:
        """Warn if the loss of a microbatch, whose output is known, is not that of its parts."""
        rows = batch.microbatch_rows[0]
        if rows < 2 or batch.target is None:
            return
        target = split(batch.target, batch.parts, batch.rows)[0]

        def joined(pair: tuple[Tree, Tree]) -> tuple[Tree, Any]:
            given, expected = pair
            return given, batch.plain.joined(expected) if batch.plain else expected

        whole = output, to_device(target, leaves(output)[0].device)
        parts = zip(*(split(tree, 2, rows) for tree in whole), strict=True)
        with autocast(leaves(output)[0].device, self._autocast):
            pieces = [joined(pair) for pair in parts]
            warn_of_other_means(self._loss, joined(whole), pieces, part_sizes(rows, 2))

    @property
    def can_end(self) -> bool:
        """Whether a run may end before its table does: not where updates may be made again."""
        return not self._validate_later and self._runner.can_end(self._devices)

    def _ends(self, schedule: Schedule, resume: ResumeConfig | None, begin: int) -> Ends:
        """Return where a run may end early."""
        if not schedule.trains or not self.can_end:
            return Ends()
        return self._tables.ends(schedule, resume.boundary.microbatches if resume else begin)

    def train(
        self,
        schedule: Schedule,
        batches: BatchSource,
        progress: bool,
        on_batch: OnBatch | None,
        *,
        checkpoints: CheckpointConfig | None,
        resume: ResumeConfig | None,
        **settings: Any,
    ) -> list[Report]:
        """Train by a schedule; the model's stages are then those after the run.

        Args:
            schedule: what to run.
            batches: the data.
            progress: whether to show a bar with the loss.
            on_batch: called with each batch whose loss is known, or None.
            checkpoints: how they are written, or None.
            resume: where the run is taken up again, or None.
            settings: more of the run's configuration.
        """
        done = resume.boundary.batches if resume else 0
        stop = batches.stop if batches.may_end else _refuse_to_stop
        rows = batches.rows
        begin, total = batches.begin, batches.total
        sizes = map(len, batches.each_batch())
        with LossBar(sizes, total, progress, on_batch, done, rows, stop, begin) as bar:
            reports = self.run(
                schedule,
                batches,
                on_news=bar.add if progress or on_batch else None,
                loss=self._loss,
                clip_norm=self._clip_norm,
                checkpoints=checkpoints,
                resume=resume,
                **settings,
            )
        self._model.take(reports)
        return reports

    def run(
        self,
        schedule: Schedule,
        batches: BatchSource,
        *,
        on_news: Listener | None = None,
        loss: Loss,
        training: bool = True,
        resume: ResumeConfig | None = None,
        begin: int = 0,
        goes_on: bool = False,
        **settings: Any,
    ) -> list[Report]:
        """Execute a schedule, and return every worker's report.

        Args:
            schedule: what to run.
            batches: the data.
            on_news: called with each loss and update in training, or None.
            loss: of the last stage's output and the target.
            training: False for inference.
            resume: where the run is taken up again, or None.
            begin: the run's first microbatch, where one by a schedule without end goes on.
            goes_on: whether such runs go on one where the other has ended.
            settings: more of the run's configuration.
        """
        total = batches.total
        table = self._tables.table(
            schedule,
            self._model.skip_ends,
            self._model.tie_ends,
            bool(self._joint_reasons()),
            self._validate_later and training,
            goes_on,
        )
        if resume:
            steps, made = table.steps_after(resume.boundary), resume.boundary.versions
        else:
            steps, made = table.steps_from(begin), table.made_before(begin)
        config = RunConfig(
            workers=len(self._devices),
            stage_workers=schedule.stage_workers,
            links=links(steps),
            sums=table.sums,
            stops=table.stops,
            sum_order=table.sums_from(made) if begin else table.sum_order,
            made=made,
            loss=loss,
            mean_loss=is_mean(loss),
            training=training,
            parameters=self._model.trained,
            norm_dtype=self._model.norm_dtype,
            validate_later=bool(table.validations),
            ties=self._model.ties,
            autocast=self._autocast,
            cluster=self._cluster,
            timeout=self._timeout,
            ends=self._ends(schedule, resume, begin),
            begin=begin,
            end=end_of(schedule, begin, total) if schedule.period and total else sys.maxsize,
            keeps=goes_on,
            resume=resume,
            **settings,
        )
        if self._is_scaled and training:
            config = replace(config, loss_versions=table.loss_versions)
        assignments = []
        for worker, own in enumerate(steps):
            later = begin > 0  # than the beginning of the schedule
            stages = list(self._model.of_worker(worker, schedule.stage_workers, goes_on=later))
            assignments.append(
                WorkerAssignment(
                    index=worker,
                    steps=own,
                    device=self._devices[worker],
                    stages=stages if training else (),
                    inference=() if training else [stage.config.passes for stage in stages],
                    validation=table.validations[worker] if table.validations else None,
                )
            )
        return self._runner.run(assignments, config, batches, on_news)

    def require_endless(self, folder: Path | None, batches: int | None) -> None:
        """Raise ValueError unless a run may go on where another one has ended.

        Args:
            folder: of the run's checkpoints, or None.
            batches: of the run, or None: nobody knows.
        """
        remedy = "leave restart=True, or give one call all batches"
        reasons = {
            "checkpoints hold a run that begins with an empty pipeline": folder is not None,
            "without weight stashing the weights that go with it are overwritten at the end of a "
            "call": not self._tables.schedule.stashing,
            'neither validate="later" nor torchrun nor NCCL can do it': not self.can_end,
        }
        for reason, given in reasons.items():
            if given:
                raise ValueError(f"restart=False: {reason}: {remedy}")
        if not self._tables.schedule.period:
            raise ValueError(
                f"restart=False: the schedule has an end: {remedy}, or pass one without end"
            )
        whole = self._tables.round
        if whole > 1 and (batches is None or batches % whole):
            raise ValueError(
                f"restart=False: updates of stages on several workers average batches, and those "
                f"of all stages come round every {whole}: give each call a multiple of {whole} "
                f"batches, with a length (not {batches or 'a stream'})"
            )

    def require_short(self) -> None:
        """Raise ValueError unless microbatches may have no rows."""
        if self._validate_later:
            raise ValueError(
                "short_batches='fewer' goes with validate='first' only: a forward that is run "
                "again has to have rows"
            )

    def close(self) -> None:
        """End what is kept for the next run, which then starts it again."""
        self._runner.close()

    def _require_joint(self, schedule: Schedule) -> None:
        """Raise ScheduleError if stages have to update together and cannot."""
        for reason in self._joint_reasons():
            arguments.require_joint_updates(schedule, reason)

    def _joint_reasons(self) -> list[str]:
        """Return why the updates of a batch wait for one another on all stages, if they do."""
        reasons = {
            "clip_norm": self._clip_norm is not None,
            "loss_scale": self._is_scaled,
            "weights that stages share": bool(self._model.ties),
        }
        return [reason for reason, given in reasons.items() if given]


def _refuse_to_stop(error: Exception | None) -> None:
    if error:
        raise error
    raise RuntimeError(
        "on_batch cannot stop these workers, which are started by torchrun, or whose GPUs talk by "
        "NCCL, or whose updates are validated later: use transport='threads' and "
        "validate='first', or give train() fewer batches"
    )
