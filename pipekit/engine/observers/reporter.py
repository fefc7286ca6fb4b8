"""How far a run is: the last stage's worker reports losses and updates to its program."""

import time
from collections import deque
from collections.abc import Callable
from functools import partial, reduce
from operator import add
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from pipekit.devices import HostNumber
from pipekit.engine import combinations
from pipekit.engine.config import RunConfig
from pipekit.engine.feed import BatchSource
from pipekit.engine.observers.observer import Observer, WorkerView
from pipekit.progress import progress_bar
from pipekit.schedules import Op, Step
from pipekit.trees import Tree


class LossKnown(NamedTuple):
    """A microbatch's part of its batch's loss is known."""

    microbatch: int
    loss: float


class UpdateMade(NamedTuple):
    """The last stage has made an update, of some batches of the run's table; see BatchDone."""

    batches: range
    learning_rates: tuple[float, ...]
    held_bytes: int | None
    gradient_norm: float | None


News = LossKnown | UpdateMade
Listener = Callable[[News], None]


class Reporter(Observer):
    """Reports the losses and updates of a worker with the last stage, in their order.

    What an accelerator has still to compute is reported after a later task.
    """

    def __init__(
        self, report: Listener, config: RunConfig, held: Callable[[], int | None] = lambda: None
    ) -> None:
        self._report, self._config, self._held = report, config, held
        self._last = len(config.table.stage_workers) - 1
        self._updated = config.begin.batches  # batches
        self._rates: tuple[float, ...] = ()  # of the update that is made now
        self._norm: HostNumber | None = None  # of the last update that was decided
        # News that lack their last entry, a number, and this number.
        self._news: deque[tuple[Callable[[Any], News], HostNumber | None]] = deque()

    def begin(self, worker: WorkerView) -> None:
        self._optimizer = worker.weights[self._last].optimizer

    def before_compute(self, worker: int, step: Step, activity: str, inputs: Tree) -> None:
        if step.task.op is Op.UPDATE and step.task.stage == self._last:
            groups = self._optimizer.param_groups if self._optimizer else []
            self._rates = tuple(
                float(group["lr"]) for group in groups if group.get("lr") is not None
            )

    def update_decided(self, worker: int, update: int, norm: Tensor | None) -> None:
        self._norm = None if norm is None else HostNumber(norm)

    def after_compute(self, worker: int, step: Step, activity: str, outputs: Tree) -> None:
        op, stage, microbatch, _ = step.task
        if activity == Op.FORWARD.name and not step.sends:
            self._news.append((partial(LossKnown, microbatch), HostNumber(outputs.main)))
        elif op is Op.UPDATE and stage == self._last:
            first = self._updated
            self._updated += self._config.table.sums[stage][step.update - 1].batches
            made = range(first, self._updated), self._rates, self._held()
            self._news.append((partial(UpdateMade, *made), self._norm))
        self._report_known()

    def end(self, worker: int) -> None:
        self._report_known(wait=True)

    def _report_known(self, wait: bool = False) -> None:
        while self._news:
            news, number = self._news[0]
            if number and not (wait or number.is_here):
                return
            self._news.popleft()
            self._report(news(number.item() if number else None))


class BatchDone(NamedTuple):
    """A batch whose loss is known, and whose update the last stage has made.

    Attributes:
        number: of the batch in this ``train`` call, from 0.
        loss: averaged over its rows.
        seconds: since the call began to run.
        rows: that it has.
        learning_rates: those of the update, of each group of the last stage's optimizer with one.
        gradient_norm: 2-norm of the update's gradient over all stages, before it is clipped; None
            without ``clip_norm`` (``math.inf`` clips nothing), or if the update is skipped.
        rows_per_s: rows of this batch and of those reported before it, a second of ``seconds``.
        held_bytes: by a worker of the last stage after the update; None without ``memory=True``.
    """

    number: int
    loss: float
    seconds: float
    rows: int
    learning_rates: tuple[float, ...]
    gradient_norm: float | None
    rows_per_s: float
    held_bytes: int | None


OnBatch = Callable[[BatchDone], object]
"""Called with each batch that is done; True stops the run."""


class LossBar:
    """Counts batches as their last microbatch's loss comes in, and reports them once updated.

    They are those of ``source``, of which ``done`` count already.  It stops when ``on_batch``
    returns True, or has raised an error.
    """

    def __init__(
        self, source: BatchSource, on_batch: OnBatch | None, done: int, shown: bool
    ) -> None:
        self._on_batch, self._begin = on_batch, time.perf_counter()
        self._rows, self._batches = source.rows, source.each_batch()
        self._stop = source.stop if source.possible_stops.batches else _refuse_to_stop
        # The batches that have begun, the microbatch behind them, and of each, until it is whole,
        # its microbatches and their losses.
        self._begun, self._behind = done, 0
        self._parts: dict[int, tuple[range, dict[int, float]]] = {}
        for _ in range(done):
            next(self._batches)
        self._updated = self._reported_rows = 0  # batches, and rows
        # Of each batch, until both are known.
        self._losses: dict[int, float] = {}
        self._updates: dict[int, UpdateMade] = {}
        # One that is not shown takes tqdm a quarter of a millisecond.
        self._bar = progress_bar(total=source.total, initial=done, unit="batch") if shown else None

    def add(self, news: News) -> None:
        """Count a microbatch's part of its batch's loss, or the batches of an update."""
        if isinstance(news, UpdateMade):
            if news.batches.stop > self._updated:  # else another worker's of the last stage
                self._updated = news.batches.stop
                for batch in news.batches:
                    self._updates[batch] = news
                    self._report_if_done(batch)
            return
        microbatch, loss = news
        while microbatch >= self._behind:
            microbatches = next(self._batches)
            self._parts[self._begun] = microbatches, {}
            self._begun, self._behind = self._begun + 1, microbatches.stop
        batch = next(n for n, (own, _) in self._parts.items() if microbatch in own)
        microbatches, parts = self._parts[batch]
        parts[microbatch] = loss
        if len(parts) == len(microbatches):
            del self._parts[batch]
            # In their order, whichever worker was the first.
            total = self._losses[batch] = reduce(add, (parts[k] for k in microbatches), 0.0)
            if self._bar is not None:
                self._bar.set_postfix(loss=f"{total:.4f}", refresh=False)
                self._bar.update()
            self._report_if_done(batch)

    def _report_if_done(self, batch: int) -> None:
        """Call ``on_batch`` if both the loss and the update of a batch are known."""
        if batch not in self._losses or batch not in self._updates:
            return
        loss, update = self._losses.pop(batch), self._updates.pop(batch)
        if not self._on_batch:
            return
        seconds, rows = time.perf_counter() - self._begin, self._rows[batch]
        self._reported_rows += rows
        done = BatchDone(
            number=batch,
            loss=loss,
            seconds=seconds,
            rows=rows,
            learning_rates=update.learning_rates,
            gradient_norm=update.gradient_norm,
            rows_per_s=self._reported_rows / seconds,
            held_bytes=update.held_bytes,
        )
        try:
            if _is_true(self._on_batch(done)):
                self._stop(None)
        except (Exception, KeyboardInterrupt) as error:  # the weights are to stay whole
            self._on_batch = None
            self._stop(error)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()


def _refuse_to_stop(error: BaseException | None) -> None:
    if error:
        raise error
    raise RuntimeError(str(combinations.conflict({combinations.STOP, combinations.TORCHRUN})))


def _is_true(answer: object) -> bool:
    """Return whether an answer is True, NumPy's or torch's too; numbers and texts are not."""
    if isinstance(answer, Tensor):
        return answer.dtype is torch.bool and bool(answer.all())
    return isinstance(answer, (bool, np.bool_)) and bool(answer)
