"""A bar that shows how far a run is, and its loss."""

from collections.abc import Sequence
from types import TracebackType

from tqdm.auto import tqdm


class LossBar:
    """Counts batches as their last microbatch's loss comes in.

    Args:
        batches: the microbatches of each batch.
        shown: False to show nothing.
        done: batches that count already.
    """

    def __init__(self, batches: Sequence[range], shown: bool, done: int = 0) -> None:
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

    def __enter__(self) -> "LossBar":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self._bar.close()
