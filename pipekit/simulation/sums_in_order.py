"""Whose turn it is among the sums of a stage's gradients over its workers."""

from pipekit.simulation.costs import StageCosts


class SumsInOrder:
    """The sums of one stage's gradients: one at a time, in an order that its workers agree on.

    Attributes:
        ready: (update, bucket) of those that can be summed.
        running: likewise, that is being summed.
        done: when each update's were all summed; version 0 needs none.
    """

    def __init__(self, cost: StageCosts) -> None:
        self._buckets = len(cost.buckets)
        self.ready: set[tuple[int, int]] = set()
        self.running: tuple[int, int] | None = None
        self.done = [0.0]
        self._bucket = 0

    def following(self) -> tuple[int, int]:
        """Return (update, bucket) of the next sum."""
        return len(self.done), self._bucket

    def finished(self, now: float) -> None:
        """Note that a sum is done."""
        self._bucket += 1
        if self._bucket == self._buckets:
            self._bucket = 0
            self.done.append(now)
