"""Whose turn it is among a worker's sums of gradients."""

from collections.abc import Callable, Iterable, Iterator


class SumTurns:
    """Has the sums of a worker's stages made in one order, in which all workers make theirs.

    Two workers that share two stages would wait for one another for ever if each made another sum
    first.

    Args:
        order: the sums over several workers as (stage, update), as
            :func:`pipekit.schedules.lowering.sums.sum_order` gives them; maybe without end.
    """

    def __init__(self, order: Iterable[tuple[int, int]]) -> None:
        self._order = order
        self._submit: dict[int, Callable[[int], bool]] = {}
        self._due: Iterator[tuple[int, int]] = iter(())
        self._next: tuple[int, int] | None = None

    def begin(self, submit: dict[int, Callable[[int], bool]], first: dict[int, int]) -> None:
        """Make the first sums, those that need nothing of this worker.

        Args:
            submit: for each of the worker's stages that others have as well, what starts the sums
                of an update as far as its gradients are there, and returns whether that is all.
            first: the first update of each that is to be summed.
        """
        self._submit = submit
        self._due = ((s, u) for s, u in self._order if s in submit and u >= first[s])
        self._next = next(self._due, None) if submit else None
        self.advance()

    def advance(self) -> None:
        """Start all sums whose turn it is, after gradients have come."""
        while self._next:
            stage, update = self._next
            if not self._submit[stage](update):
                return
            self._next = next(self._due, None)

    def end(self) -> None:
        """Start no more."""
        self._next, self._submit = None, {}
