"""How far a run is, as its program sees it: a bar with the loss, and calls of the user's."""

import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import NamedTuple

from tqdm.auto import tqdm


class BatchDone(NamedTuple):
    """A batch whose loss is known.

    Attributes:
        number: of the batch in this ``train`` call, from 0.
        loss: averaged over its rows.
        seconds: since the call began to run.
    """

    number: int
    loss: float
    seconds: float


class LossBar:
    """Counts batches as their last microbatch's loss comes in.

    Args:
        batches: the microbatches of each batch.
        shown: False to show nothing.
        on_batch: called with each batch, or None.
        done: batches that count already.
    """

    def __init__(
        self,
        batches: Sequence[range],
        shown: bool,
        on_batch: Callable[[BatchDone], object] | None = None,
        done: int = 0,
    ) -> None:
        self._on_batch, self._begin = on_batch, time.perf_counter()
        self._batch_of = [b for b, batch in enumerate(batches) for _ in batch]
        self._left = [len(batch) for batch in batches]
        self._totals = [0.0] * len(batches)
        self._bar = tqdm(
            total=len(batches), initial=done, unit="batch", disable=not shown, leave=False
        )

    def add(self, microbatch: int, loss: float) -> None:
        """Count a microbatch's part of its batch's loss."""
        batch = self._batch_of[microbatch]
        self._totals[batch] += loss
        self._left[batch] -= 1
        if not self._left[batch]:
            self._bar.set_postfix(loss=f"{self._totals[batch]:.4f}", refresh=False)
            self._bar.update()
            if self._on_batch:
                seconds = time.perf_counter() - self._begin
                self._on_batch(BatchDone(batch, self._totals[batch], seconds))

    def __enter__(self) -> "LossBar":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self._bar.close()
