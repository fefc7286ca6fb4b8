"""A bar for plans that take long: of hundreds of layers, on hundreds of workers."""

from collections.abc import Collection, Iterable
from typing import TypeVar

from pipekit.progress import progress_bar

T = TypeVar("T")
PATIENCE_S = 1.0


def planning_bar(steps: Collection[T], shown: bool) -> Iterable[T]:
    """Return the steps, counted by a bar if it is wanted and they take more than a second."""
    if not shown:
        return steps
    return progress_bar(steps, desc="planning", unit="step", delay=PATIENCE_S)
