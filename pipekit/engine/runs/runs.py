"""The runs of a pipeline, one after another; each begins where the last one ended."""

import os
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from functools import cached_property, partial
from itertools import islice
from pathlib import Path
from typing import Any

from pipekit.engine import arguments, combinations
from pipekit.engine.assignment import NotBuilt, WorkerReport
from pipekit.engine.calls import interrupts
from pipekit.engine.checkpoints.files import require_plain
from pipekit.engine.checkpoints.progress import TrainingProgress
from pipekit.engine.config import Extent, Start
from pipekit.engine.execution.special_microbatches import read_in_chunks
from pipekit.engine.feed import BatchSource, Read, kept_apart, stacks
from pipekit.engine.observers.observer import Watchers
from pipekit.engine.observers.reporter import OnBatch
from pipekit.engine.options import Checkpoints, Watch, require_callable
from pipekit.engine.runs.assembly import Parts
from pipekit.engine.runs.run import Run
from pipekit.engine.runs.tables import batches_done, taken
from pipekit.engine.runs.workers import Workers
from pipekit.engine.transports.processes.forkserver import WorkerDied
from pipekit.layers.seeded import torch_seed
from pipekit.partition.probe import warn_of_edited_batch
from pipekit.schedules import Schedule, inference


class Runs:
    """Trains and evaluates the stages of a model, and tracks the progress of the training."""

    def __init__(self, parts: Parts) -> None:
        self._parts, self._model, self._workers = parts, parts.model, Workers(parts)
        self._progress, self._failed = TrainingProgress(parts.runner.agree), False
        self._warned = False

    def train(
        self,
        batches: Iterable[Any],
        *,
        steps: int | None,
        on_batch: OnBatch | None,
        checkpoints: str | os.PathLike[str] | Checkpoints | None,
        watch: Watch,
    ) -> Run:
        """Train on every batch once; see :meth:`pipekit.Pipeline.train`."""
        written = checkpoints
        if written is not None and not isinstance(written, Checkpoints):
            written = Checkpoints(written)
        self._require_allowed(batches, steps, on_batch, written, watch)
        folder = Path(written.folder).absolute() if written else None
        claimed = self._progress.claimed(folder) if folder else nullcontext()
        with self._errors_explained(folder), claimed:
            if folder or self._progress.resume_point:
                self._progress.begin()
            extent = self._extent(batches, steps, folder)
            start, schedule = extent.start, extent.start.schedule
            began = time.perf_counter()
            self.require_sound()
            seed = self._reseed()
            source = self._source(batches, steps, extent)
            reports: list[WorkerReport] = []
            stop_early = source.stop if source.possible_stops.batches else None
            interrupted: list[KeyboardInterrupt] = []
            if start.resume and start.resume.boundary.batches == len(schedule):  # nothing is left
                deque(source, maxlen=0)  # whoever makes them may draw random numbers
            else:
                config = None
                if folder and written:
                    balance = self._model.balance
                    assert balance is not None
                    config = self._progress.checkpoint_config(folder, written, start, balance)
                with interrupts(stop_early) as interrupted, self._under_way():
                    reports = self._workers.train(extent, source, watch, on_batch, config)
            end = min((each.end for each in reports), default=sys.maxsize)
            each_batch = partial(batches_done, schedule, end)
            count = stop = 0
            for count, batch in enumerate(each_batch(), 1):  # noqa: B007
                stop = batch.stop
            self._progress.end(start.offset + count, start.microbatches + stop)
            # Of several workers' errors the one of the earliest microbatch counts.
            first = min(reports, key=lambda each: (each.error is None, each.end), default=None)
            if error := next(iter(interrupted), source.error or (first and first.error)):
                self._workers.close()
                raise error
            wall = time.perf_counter() - began
            done = partial(schedule.before, stop)
            return Run.of(schedule.name, done, each_batch(), reports, wall, seed, start.losses)

    def _require_allowed(
        self,
        batches: Iterable[Any],
        steps: int | None,
        on_batch: OnBatch | None,
        checkpoints: Checkpoints | None,
        watch: Watch,
    ) -> None:
        """Raise an error for wrong arguments before anything is read."""
        used = self._parts.used
        arguments.require_watchers(watch.observers, self._parts.transport)
        arguments.require_steps(steps)
        arguments.require_batches(batches)
        if on_batch is not None:
            require_callable(on_batch=on_batch)
        if watch.outputs:
            combinations.require_compatible({*used, combinations.OUTPUTS})
        if checkpoints is not None:
            combinations.require_compatible({*used, combinations.CHECKPOINTS})
            require_plain(self._model.known_extra_states())

    def _reseed(self) -> int | None:
        """Let the layers draw from the seed that counts now, and return it."""
        seed = torch_seed() if isinstance(self._parts.seed, str) else self._parts.seed
        self._model.reseed(seed)
        return seed

    def _extent(self, batches: Iterable[Any], steps: int | None, folder: Path | None) -> Extent:
        """Return the batches of a run, and its schedule."""
        schedule = self._parts.schedule
        if self._workers.stop_anywhere and not (folder or self._progress.resume_point):
            total = None if steps else arguments.length(batches)
            start = Start(schedule, 0, self._progress.position.microbatches)
            return Extent(start, islice(batches, steps), total)
        counted, most, total = arguments.counted(batches, steps)
        start = self._progress.start(most, partial(taken, schedule), self._model.balance)
        rest = islice(counted, start.offset, None)
        return Extent(start, rest, total and total - start.offset)

    def _source(self, batches: Iterable[Any], steps: int | None, extent: Extent) -> BatchSource:
        """Return the source of the batches; too short ones are refused now if they are known."""
        start, reader = extent.start, self._parts.reader
        come_round = len(start.schedule.batch_stops) or len(start.schedule)
        parts = [*map(len, islice(start.schedule.each_batch(), come_round))]
        read: Read = reader.read
        chunks = start.schedule.chunks
        if chunks > 1:
            read, parts = read_in_chunks(read, chunks), [part // chunks for part in parts]
        reader.require_long(batches, parts, start.offset, steps)
        return self._ready(batches, read, extent)

    def _ready(self, batches: Iterable[Any], read: Read, extent: Extent) -> BatchSource:
        """Return the source of the batches, after a look at the first one."""
        read = kept_apart(batches, read)
        source = self._workers.ready(extent, read, self._progress.resume_point)
        if self._model.edits_batch and not self._warned and not stacks(batches):
            self._warned = True
            warn_of_edited_batch()
        return source

    def infer(
        self,
        batches: Iterable[Any],
        function: Callable[[Any, Any], Any],
        observers: Watchers,
        labelled: bool = True,
    ) -> list[WorkerReport]:
        """Run the layers forward; the last stage's worker calls a function of output and target."""
        arguments.require_watchers(observers, self._parts.transport)
        arguments.require_batches(batches)
        counted, count, _ = arguments.counted(batches)
        schedule = self._inference if self._workers.can_end else self._inference.take(count)
        self.read()
        self._reseed()
        reader = self._parts.reader
        start = Start(schedule, 0, self._progress.position.microbatches)
        extent = Extent(start, iter(counted), count)
        try:
            source = self._ready(batches, reader.read if labelled else reader.unlabelled, extent)
            return self._workers.run(extent, source, function, Watch(observers=tuple(observers)))
        except Exception as error:
            if labelled or not reader.paired or isinstance(error, WorkerDied):
                raise
            raise ValueError(
                f"the model cannot take the pairs that predict() was given ({error}): pass inputs "
                f"without targets, (x for x, _ in batches)"
            ) from error

    @cached_property
    def _inference(self) -> Schedule:
        """The schedule by which batches stream through the first worker of each stage."""
        schedule = self._parts.schedule
        first = [workers[0] for workers in schedule.stage_workers]
        return inference(schedule.stages, first, schedule.worker_count)

    def resume(self, checkpoints: str | os.PathLike[str]) -> int:
        """Go back to the newest checkpoint in a folder; return the number of earlier runs."""
        point = self._progress.resume(Path(checkpoints).absolute())
        if point is None:
            return 0
        self._forget_what_failed()
        self._model.resume(point)
        self._failed = False
        return point.position.runs

    def load(self, state: Mapping[str, Any], strict: bool) -> None:
        """Load weights and buffers; see :meth:`pipekit.Pipeline.load_state_dict`."""
        self._forget_what_failed()
        self._model.load(state, strict)
        self._failed = False

    def require_gradients(self, names: Iterable[str], flag: bool) -> None:
        """Train weights or freeze them; see :meth:`pipekit.Pipeline.requires_grad_`."""
        self.read()
        self._model.require_gradients(names, flag)

    def read(self) -> None:
        """Fetch all stages, to read or change them between runs.

        Raises:
            RuntimeError: they stand at different updates.
            WorkerDied: the process of a worker with stages has ended.
        """
        self.require_sound()
        try:
            self._model.read()
        except WorkerDied:
            self._failed = True
            raise

    @contextmanager
    def _under_way(self) -> Iterator[None]:
        """Lend the stages to workers; they count as failed unless the run ends well."""
        self._failed = True
        try:
            yield
            self._failed = False
        except NotBuilt as failure:
            self._failed = False
            raise failure.error from failure.__cause__

    @contextmanager
    def _errors_explained(self, folder: Path | None) -> Iterator[None]:
        """Add to an error the way to resume, a change in the batches' form, and the checkpoint."""
        point = self._progress.resume_point
        try:
            yield
        except Exception as error:
            if isinstance(error, WorkerDied) and folder is not None:
                error.add_note(
                    f"(build the pipeline again and call resume({str(folder)!r}) before train(), "
                    f"which then goes on from the newest checkpoint; in the shell: --resume)"
                )
            if changed := self._parts.reader.changed:
                error.add_note(changed)
            if point is not None:
                error.add_note(f"(the run went on from {point.checkpoint})")
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
