"""The runs of a pipeline, one after another: each begins where the last one ended."""

import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

from pipekit.engine import arguments
from pipekit.engine.checkpoints.progress import Agree, TrainingProgress
from pipekit.engine.checkpoints.resume_point import ResumePoint
from pipekit.engine.model_stages import ModelStages
from pipekit.engine.observers.loss_bar import BatchDone
from pipekit.engine.observers.observer import Watchers
from pipekit.engine.run import Run
from pipekit.engine.tables import Tables
from pipekit.engine.transports.processes.worker_pool import WorkerDied
from pipekit.engine.work import Report
from pipekit.engine.workers import Workers


class Runs:
    """Trains and evaluates the stages of a model, and knows how far the training is.

    Args:
        tables: the schedules.
        model: the stages.
        workers: execute them.
        agree: for what all processes must see alike.
        transport: the name of what joins the workers.
        seed: of the layers' random numbers, for the record.
    """

    def __init__(
        self,
        tables: Tables,
        model: ModelStages,
        workers: Workers,
        agree: Agree,
        transport: str,
        seed: int,
    ) -> None:
        self._tables, self._model, self._workers = tables, model, workers
        self._transport, self._seed = transport, seed
        self._progress, self._failed = TrainingProgress(agree), False

    def train(
        self,
        batches: Iterable[tuple[Any, Any]],
        *,
        checkpoints: str | os.PathLike[str] | None,
        every: int | None,
        keep: int,
        progress: bool,
        on_batch: Callable[[BatchDone], object] | None,
        observers: Watchers,
        **settings: Any,
    ) -> Run:
        """Train on every batch once; see :meth:`pipekit.Pipeline.train`.

        Args:
            batches: the user's.
            checkpoints: the folder of checkpoints, or None.
            every: batches from one to the next, or None.
            keep: how many stay.
            progress: whether to show a bar.
            on_batch: called with each batch whose loss is known, or None.
            observers: watch the workers.
            settings: more of the run's configuration.
        """
        arguments.require_every(every, checkpoints, keep)
        arguments.require_watchers(observers, self._transport)
        with (
            _told_what_was_resumed(self._progress.resume_point),
            self._progress.claimed(checkpoints) as folder,
            _told_how_to_resume(folder),
        ):
            self._progress.begin()
            counted = arguments.sized(batches)
            start = self._progress.start(len(counted), self._tables.schedule, self._model.balance)
            begin = time.perf_counter()
            self.require_sound()
            rest = islice(counted, start.offset, len(counted))
            ready = self._workers.ready(start.schedule, rest, self._progress.resume_point)
            reports = []
            if start.is_end:
                deque(ready, maxlen=0)  # whoever makes them may draw random numbers
            else:
                balance = self._model.balance
                assert balance is not None
                written = self._progress.checkpoint_config(folder, every, keep, start, balance)
                self._failed = True
                reports = self._workers.train(
                    start.schedule,
                    ready,
                    progress,
                    on_batch,
                    first_microbatch=start.microbatches,
                    checkpoints=written,
                    resume=start.resume,
                    observers=tuple(observers),
                    **settings,
                )
                self._failed = False
            self._progress.end(start, len(counted))
            wall = time.perf_counter() - begin
            return Run.of(start.schedule, reports, wall, self._seed, start.losses)

    def infer(
        self,
        batches: arguments.Batches,
        function: Callable[[Any, Any], Any],
        observers: Watchers,
    ) -> list[Report]:
        """Run the layers forward; the last stage's worker calls a function of output and target."""
        arguments.require_watchers(observers, self._transport)
        schedule = self._tables.inference(len(batches))
        self.require_sound()
        return self._workers.run(
            schedule,
            self._workers.ready(schedule, iter(batches), self._progress.resume_point),
            loss=function,
            first_microbatch=self._progress.position.microbatches,
            training=False,
            observers=tuple(observers),
        )

    def resume(self, checkpoints: str | os.PathLike[str]) -> int:
        """Go back to the newest checkpoint in a folder; return how many runs lie before its run."""
        point = self._progress.resume(Path(checkpoints).absolute())
        if point is None:
            return 0
        self._model.resume(point)
        self._failed = False
        return point.position.runs

    def require_sound(self) -> None:
        """Raise RuntimeError if the stages stand at different updates."""
        if self._failed:
            raise RuntimeError(
                "the last run did not end, and left its stages at different updates: build the "
                "pipeline again, or resume() from a checkpoint"
            )


@contextmanager
def _told_what_was_resumed(point: ResumePoint | None) -> Iterator[None]:
    """Let whoever gets an error know that the run went on from a checkpoint, and from which."""
    try:
        yield
    except Exception as error:
        if point is not None:
            error.add_note(f"(the run went on from {point.checkpoint})")
        raise


@contextmanager
def _told_how_to_resume(folder: Path | None) -> Iterator[None]:
    """Let whoever lost a worker know how the training goes on."""
    try:
        yield
    except WorkerDied as error:
        if folder is not None:
            error.add_note(
                f"(build the pipeline again and call resume({str(folder)!r}) before train(), which "
                f"then goes on from the newest checkpoint; in the shell: --resume)"
            )
        raise
