"""The runs of a pipeline, one after another; each begins where the last one ended."""

import os
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager, nullcontext, suppress
from dataclasses import replace
from functools import cached_property, partial
from itertools import islice
from operator import attrgetter
from pathlib import Path
from typing import Any

import torch

from pipekit.engine import arguments, combinations
from pipekit.engine.assignment import NotBuilt, WorkerReport
from pipekit.engine.calls import interrupts
from pipekit.engine.checkpoints.files import require_plain
from pipekit.engine.checkpoints.folder import CheckpointFolder
from pipekit.engine.checkpoints.resume_point import Position, ResumePoint
from pipekit.engine.config import CheckpointConfig, Start
from pipekit.engine.execution.special_microbatches import read_in_chunks
from pipekit.engine.feed import BatchSource, Read, kept_apart, stacks
from pipekit.engine.observers.reporter import LossBar, OnBatch
from pipekit.engine.options import Checkpoints, Watch, require_callable
from pipekit.engine.runs.assembly import Parts
from pipekit.engine.runs.questions import FirstBatch, ask
from pipekit.engine.runs.run import Run, result_of
from pipekit.engine.runs.tables import batches_done, executed, lowered_for, scale_versions, taken
from pipekit.engine.runs.users_model import watched
from pipekit.engine.transports.processes.forkserver import WorkerDied
from pipekit.engine.updates.loss_scaler import LossScaler
from pipekit.host.user_frames import warn
from pipekit.layers.pass_state import warn_of_modes
from pipekit.layers.seeded import drawn_since, numbers_so_far
from pipekit.schedules import Schedule, inference
from pipekit.schedules.lowering.boundaries import PossibleStops, possible_stops
from pipekit.trees import tensors_in


class Runs:
    """Trains and evaluates the stages of a model, and tracks the progress of the training."""

    def __init__(self, parts: Parts) -> None:
        self._parts, self._model = parts, parts.model
        self._position, self._checkpoints = Position(), CheckpointFolder(parts.runner.agree)
        self._point: ResumePoint | None = None  # of the run that is to be taken up next
        self._failed = self._warned = False
        joints, schedule = parts.model.joints, parts.schedule
        if joints and joints.ties:
            combinations.require_joint_updates(schedule, combinations.TIES)
        # Else the first run decides: by its length, or by the balance that its data tell.
        if joints is not None and (parts.stops_anywhere or not schedule.period):
            lowered_for(parts, schedule, joints)
            if parts.runner.can_end and not schedule.period:
                possible_stops(schedule)

    def train(
        self,
        batches: Iterable[Any],
        steps: int | None,
        on_batch: OnBatch | None,
        checkpoints: str | os.PathLike[str] | Checkpoints | None,
        watch: Watch,
    ) -> Run:
        """Train on every batch once; see :meth:`pipekit.Pipeline.train`."""
        written = checkpoints
        if written is not None and not isinstance(written, Checkpoints):
            written = Checkpoints(written)
        arguments.require_watchers(watch.observers, self._parts.transport)
        arguments.require_batches(batches, steps)
        if on_batch is not None:
            require_callable(on_batch=on_batch)
        if watch.outputs:
            combinations.require_compatible({*self._parts.used, combinations.OUTPUTS})
        if written:
            combinations.require_compatible({*self._parts.used, combinations.CHECKPOINTS})
            require_plain(self._model.known_extra_states())
        folder = Path(written.folder).absolute() if written else None
        claimed = self._checkpoints.claimed(folder) if folder else nullcontext()
        with self._errors_explained(folder), claimed:
            if folder or self._point:
                self._checkpoints.begin(self._point, batches)
            start, rest, total = self._start(batches, steps, folder)
            schedule, began = start.schedule, time.perf_counter()
            self.require_sound()
            seed = self._model.reseed(self._parts.seed)
            reader = self._parts.reader
            reader.require_long(batches, start, steps)
            chunks = schedule.chunks
            read = reader.read if chunks == 1 else read_in_chunks(reader.read, chunks)
            source = self._source(batches, start, rest, total, read)
            reports: list[WorkerReport] = []
            stop_early = source.stop if source.possible_stops.batches else None
            interrupted: list[KeyboardInterrupt] = []
            if start.checkpoint and start.begin.batches == len(schedule):  # nothing is left
                deque(source, maxlen=0)  # whoever makes them may draw random numbers
                reports = [self._finished(start)] * schedule.worker_count
            else:
                config = None
                if written:
                    balance = self._model.balance
                    assert balance is not None
                    config = self._checkpoints.config(written, start, self._position, balance)
                with interrupts(stop_early) as interrupted:
                    reports = self._train(start, source, watch, on_batch, config)
            end = min(map(attrgetter("end"), reports), default=sys.maxsize)
            each_batch = partial(batches_done, schedule, end)
            count = stop = 0
            for count, batch in enumerate(each_batch(), 1):  # noqa: B007
                stop = batch.stop
            runs, before, _ = self._position
            behind = before + start.offset + count, start.microbatches + stop
            self._position, self._point = Position(runs + 1, *behind), None
            # Of several workers' errors the one of the earliest microbatch counts.
            failed = sorted(filter(attrgetter("error"), reports), key=attrgetter("end"))
            errors = [*interrupted, source.error, *map(attrgetter("error"), failed)]
            for error in filter(None, errors):
                self._parts.runner.close()
                raise error
            source.exhaust(batches)
            wall = time.perf_counter() - began
            done = partial(schedule.before, stop)
            return result_of(schedule.name, done, each_batch(), reports, wall, seed, start.losses)

    def _start(
        self, batches: Iterable[Any], steps: int | None, folder: Path | None
    ) -> tuple[Start, Iterator[Any], int | None]:
        """Return where a run begins, the batches from there on, and their number, if known."""
        schedule = self._parts.schedule
        if self._parts.stops_anywhere and not (folder or self._point):
            total = None if steps else arguments.length(batches)
            start = Start(schedule, 0, self._position.microbatches)
            return start, islice(batches, steps), total
        counted, most, total = arguments.counted(batches, steps)
        if self._point:
            start = self._point.start(most, partial(taken, schedule), self._model.balance)
        else:
            start = Start(taken(schedule, most), 0, self._position.microbatches)
        return start, islice(counted, start.offset, None), total and total - start.offset

    def _source(
        self,
        batches: Iterable[Any],
        start: Start,
        rest: Iterator[Any],
        total: int | None,
        read: Read,
    ) -> BatchSource:
        """Return a run's batches; the first one serves to build the stages, and to ask questions.

        What a schedule cannot train is refused: ties, mitigation, a loss or an optimizer.
        """
        parts, schedule, model = self._parts, start.schedule, self._model
        autocast, kind = parts.execution.autocast, parts.devices[0].type
        if torch.is_autocast_enabled(kind) and torch.get_autocast_dtype(kind) != autocast:
            raise ValueError(
                f"the call is within torch.autocast, which workers do not see: leave it out, "
                f"and build the pipeline with autocast={torch.get_autocast_dtype(kind)}"
            )
        warn_of_modes()
        read, numbers = kept_apart(batches, read), numbers_so_far()
        try:
            with torch.inference_mode(False):  # as in the threads that read the others
                first = read(next(rest), len(next(schedule.each_batch())), 0)
        except StopIteration:
            raise ValueError(arguments.NO_BATCHES) from None
        if schedule.trains and any(map(torch.is_inference, tensors_in(first[:2]))):
            raise ValueError(
                "a batch was made within torch.inference_mode(), and has no gradients: make it "
                "outside"
            )
        drawn = drawn_since(numbers)
        tried = model.prepare(first.cut_input()[0], autocast, self._point, schedule.trains)
        assert model.balance
        ends = PossibleStops()
        if schedule.trains:
            assert model.partition
            lowered_for(parts, schedule, model.partition)
            if parts.updates.rule:
                arguments.require_whole_rounds(parts.updates.rule, schedule)
            if tried is not None:
                ask(FirstBatch(parts, first, tried, drawn), schedule)
                model.tried_in_training = True  # else what is refused is asked again
            ends = parts.stops if schedule.period else possible_stops(schedule)
            ends = replace(ends, begin=start.begin.microbatches)
        if model.edits_batch and not self._warned and not stacks(batches):
            self._warned = True
            warn(
                "the model edits its input in place, here a copy of the batch, which stays as it "
                "is: a plain loop would find the edited one in its next epoch. Let the forward "
                "begin with x = x.clone(), or edit the data before training"
            )
        stops = ends if parts.runner.can_end else PossibleStops()
        return BatchSource(first, rest, schedule.each_batch, total, stops, ends, read)

    def _train(
        self,
        start: Start,
        source: BatchSource,
        watch: Watch,
        on_batch: OnBatch | None,
        checkpoints: CheckpointConfig | None,
    ) -> list[WorkerReport]:
        """Train; the stages, lent to workers, count as failed unless the run ends well."""
        parts = self._parts
        bar = None
        if watch.progress or on_batch:
            if on_batch and parts.runner.copies_loss:
                on_batch = watched(on_batch, parts.loss)
            bar = LossBar(source, on_batch, start.begin.batches, watch.progress)
        self._failed = True
        try:
            with closing(bar) if bar else nullcontext():
                on_news = bar.add if bar else None
                reports = executed(parts, start, source, parts.loss, watch, on_news, checkpoints)
        except NotBuilt as failure:
            self._failed = False
            raise failure.error from failure.__cause__
        self._model.take(reports)
        self._failed = False
        return reports

    def _finished(self, start: Start) -> WorkerReport:
        """Return a worker's report of a run that is in its checkpoint as a whole."""
        rule, point = self._parts.updates.scale, self._point
        saved = point and point.stages[0]["state"]["loss_scaler"]
        if not (rule and saved and start.losses):
            return WorkerReport(weight_slots=0)
        scaler = LossScaler(rule)
        scaler.begin(scale_versions(start.schedule))
        scaler.load_state_dict(saved)
        return WorkerReport(weight_slots=0, loss_scales=scaler.scales, skipped=scaler.skipped)

    def infer(
        self, batches: Iterable[Any], function: Callable[[Any, Any], Any], labelled: bool = True
    ) -> list[WorkerReport]:
        """Run the layers forward; the last stage's worker calls a function of output and target."""
        arguments.require_batches(batches)
        counted, count, _ = arguments.counted(batches)
        schedule = self._inference if self._parts.runner.can_end else self._inference.take(count)
        self.read()
        self._model.reseed(self._parts.seed)
        reader = self._parts.reader
        start = Start(schedule, 0, self._position.microbatches)
        read = reader.read if labelled else reader.unlabelled
        try:
            source = self._source(batches, start, iter(counted), count, read)
            reports = executed(self._parts, start, source, function, Watch())
            source.exhaust(batches)
            return reports
        except Exception as error:
            if labelled or not reader.paired or isinstance(error, WorkerDied):
                raise
            raise ValueError(
                f"the model cannot take what predict() was given ({error}): pass inputs alone, "
                f"(x for x, *_ in batches), without lists or targets"
            ) from error

    @cached_property
    def _inference(self) -> Schedule:
        """The schedule by which batches stream through the first worker of each stage."""
        schedule = self._parts.schedule
        first = [workers[0] for workers in schedule.stage_workers]
        return inference(schedule.stages, first, schedule.worker_count)

    def resume(self, checkpoints: str | os.PathLike[str]) -> int:
        """Go back to the newest checkpoint in a folder; return the number of earlier runs."""
        point = self._checkpoints.resume(Path(checkpoints).absolute())
        if point is None:
            return 0
        self._point, self._position = point, point.position
        self._forget_what_failed()
        self._model.resume(point)
        self._failed = False
        return point.position.runs

    def require_gradients(self, names: Iterable[str], flag: bool) -> None:
        """Let weights be trained, or not; see :meth:`pipekit.Pipeline.requires_grad_`."""
        self.read()
        self._model.require_gradients(names, flag, self._point)

    def load(self, state: Mapping[str, Any], strict: bool) -> None:
        """Load weights and buffers; see :meth:`pipekit.Pipeline.load_state_dict`."""
        if self._failed:  # then the run that was taken up is given up
            self._point = None
        if self._point:
            raise RuntimeError(
                f"the next train() goes on with the weights of {self._point.checkpoint}, which "
                f"resume() has chosen: load others after it, or in a pipeline that does not resume"
            )
        self._forget_what_failed()
        self._model.load(state, strict)
        self._failed = False

    def read(self) -> None:
        """Fetch all stages, to read or change them between runs.

        RuntimeError says that they stand at different updates, WorkerDied that one is gone.
        """
        self.require_sound()
        try:
            self._model.read()
        except WorkerDied:
            self._failed = True
            raise

    @contextmanager
    def _errors_explained(self, folder: Path | None) -> Iterator[None]:
        """Add to an error the way to resume, and a change in the batches' form."""
        try:
            yield
        except Exception as error:
            if isinstance(error, WorkerDied) and folder is not None:
                error.add_note(
                    f"(build the pipeline again and call resume({str(folder)!r}) before train(), "
                    f"which then goes on from the newest checkpoint; in the shell: --resume)"
                )
            if "more than 1 value per channel" in str(error):  # of a batch norm
                error.add_note(
                    "(a microbatch has one row: leave out the last, shorter batch, as DataLoader("
                    "drop_last=True) does, or use fewer microbatches)"
                )
            if changed := self._parts.reader.changed:
                error.add_note(changed)
            raise

    def _forget_what_failed(self) -> None:
        """Drop stages that a failed run has left, before others take their place."""
        if not self._failed:
            with suppress(WorkerDied):
                self.read()
        if self._failed:
            self._model.forget()

    def require_sound(self) -> None:
        """Raise RuntimeError if the stages stand at different updates."""
        if self._failed:
            raise RuntimeError(
                "the last run did not end, and left its stages at different updates: build the "
                "pipeline again, resume() from a checkpoint, or load_state_dict()"
            )
