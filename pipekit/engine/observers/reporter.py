"""How far a run is: the last stage's worker reports losses and updates, and its program hears."""

import time
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

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
    gradient_norm: float | None
    held_bytes: int | None


Listener = Callable[[LossKnown | UpdateMade], None]


class Reporter(Observer):
    """Tells of the losses and updates of a worker with the last stage, each kind in order.

    What an accelerator has still to compute is told of after a later task.
    """

    def __init__(
        self, tell: Listener, config: RunConfig, held: Callable[[], int | None] = lambda: None
    ) -> None:
        self._tell, self._config, self._held = tell, config, held
        self._losses: deque[tuple[int, HostNumber]] = deque()
        self._rates: dict[int, tuple[float, ...]] = {}  # by update, until it is reported
        self._norms: dict[int, HostNumber | None] = {}  # likewise
        self._told = config.resume.boundary.batches if config.resume else 0

    def begin(self, worker: WorkerView) -> None:
        self._last = len(self._config.table.stage_workers) - 1
        self._optimizer = worker.weights[self._last].optimizer

    def before_compute(self, worker: int, step: Step, activity: str, inputs: Tree) -> None:
        if step.task.op is Op.UPDATE and step.task.stage == self._last:
            groups = self._optimizer.param_groups if self._optimizer else []
            rates = (float(group["lr"]) for group in groups if "lr" in group)
            self._rates[step.update] = tuple(rates)

    def update_decided(self, worker: int, update: int, norm: Tensor | None) -> None:
        self._norms[update] = None if norm is None else HostNumber(norm)

    def after_compute(self, worker: int, step: Step, activity: str, outputs: Tree) -> None:
        if activity == Op.FORWARD.name and not step.sends:
            self._losses.append((step.task.microbatch, HostNumber(outputs.main)))
        elif step.task.op is not Op.UPDATE:
            return
        self._tell_of(lambda number: number.is_here)

    def end(self, worker: int) -> None:
        self._tell_of(lambda number: True)

    def _tell_of(self, is_here: Callable[[HostNumber], bool]) -> None:
        while self._losses and is_here(self._losses[0][1]):
            microbatch, loss = self._losses.popleft()
            self._tell(LossKnown(microbatch, loss.item()))
        for update in list(self._rates):
            if self._config.updates.clip_norm is not None and update not in self._norms:
                return  # all stages agree on it later
            norm = self._norms.get(update)
            if norm and not is_here(norm):
                return
            self._norms.pop(update, None)
            summed = self._config.table.sums[self._last][update - 1].batches
            batches = range(self._told, self._told + summed)
            self._told += summed
            of_all = norm.item() if norm else None
            self._tell(UpdateMade(batches, self._rates.pop(update), of_all, self._held()))


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
        rows_per_s: rows of this batch and of those told of before it, a second of ``seconds``.
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
"""Is told of a batch; True stops the run."""

_TOLD = -1  # in place of the microbatches of a batch whose losses are still to come


class LossBar:
    """Counts batches as their last microbatch's loss comes in, and tells of them once updated.

    They are those of ``source``, of which ``done`` count already.  It stops when ``on_batch``
    returns True, or has raised an error.
    """

    def __init__(
        self, source: BatchSource, on_batch: OnBatch | None, done: int, shown: bool
    ) -> None:
        self._on_batch, self._begin = on_batch, time.perf_counter()
        self._rows = source.rows
        self._stop = source.stop if source.possible_stops.batches else _refuse_to_stop
        self._sizes = map(len, source.each_batch())
        self._batch_of: list[int] = []  # of each microbatch, as far as losses have come
        self._left: list[int] = []
        self._totals: list[float] = []
        self._rows_told = 0
        self._updates: dict[int, UpdateMade] = {}  # of each batch, until its loss is known as well
        # One that is not shown takes tqdm a quarter of a millisecond.
        self._bar = progress_bar(total=source.total, initial=done, unit="batch") if shown else None

    def add(self, news: LossKnown | UpdateMade) -> None:
        """Count a microbatch's part of its batch's loss, or the batches of an update."""
        if isinstance(news, UpdateMade):
            self._updates.update(dict.fromkeys(news.batches, news))
            for batch in news.batches:
                self._tell(batch)
        else:
            self._count(*news)

    def _count(self, microbatch: int, loss: float) -> None:
        while len(self._batch_of) <= microbatch:
            size = next(self._sizes)
            self._batch_of += [len(self._left)] * size
            self._left.append(size)
            self._totals.append(0.0)
        batch = self._batch_of[microbatch]
        self._totals[batch] += loss
        self._left[batch] -= 1
        if not self._left[batch]:
            if self._bar is not None:
                self._bar.set_postfix(loss=f"{self._totals[batch]:.4f}", refresh=False)
                self._bar.update()
            self._tell(batch)

    def _tell(self, batch: int) -> None:
        """Tell once of a batch whose loss and update are both known."""
        if batch not in self._updates or batch >= len(self._left) or self._left[batch] > 0:
            return
        update, is_told = self._updates.pop(batch), self._left[batch] == _TOLD
        self._left[batch] = _TOLD
        if self._on_batch and not is_told:  # each worker of the last stage tells of its updates
            seconds = time.perf_counter() - self._begin
            rows = self._rows[batch]
            self._rows_told += rows
            of_update = update.learning_rates, update.gradient_norm
            so_far = self._rows_told / seconds, update.held_bytes
            done = BatchDone(batch, self._totals[batch], seconds, rows, *of_update, *so_far)
            try:
                if _is_true(self._on_batch(done)):
                    self._stop(None)
            except Exception as error:  # the weights are to stay whole
                self._on_batch = None
                self._stop(error)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()


def _refuse_to_stop(error: Exception | None) -> None:
    if error:
        raise error
    raise RuntimeError(str(combinations.conflict({combinations.STOP, combinations.TORCHRUN})))


def _is_true(answer: object) -> bool:
    """Return whether an answer is True, NumPy's or torch's too; numbers and texts are not."""
    if isinstance(answer, Tensor):
        return answer.dtype is torch.bool and bool(answer.all())
    return isinstance(answer, (bool, np.bool_)) and bool(answer)
