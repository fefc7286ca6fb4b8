"""Tells of every microbatch's loss once it is known, without keeping the last stage waiting."""

from collections import deque
from collections.abc import Callable

from pipekit.devices import HostNumber
from pipekit.engine.observers.observer import Observer
from pipekit.schedules import Op, Step
from pipekit.trees import Tree


class LossReporter(Observer):
    """Calls a function with the losses of one worker, in training, in their order.

    Args:
        tell: called with (microbatch, weighted loss); on an accelerator, which computes while its
            worker goes on, when the worker next has a loss.
    """

    def __init__(self, tell: Callable[[int, float], None]) -> None:
        self._tell = tell
        self._coming: deque[tuple[int, HostNumber]] = deque()

    def after_compute(self, worker: int, step: Step, activity: str, outputs: Tree) -> None:
        """Tell of the losses that have arrived, if this is a forward of the last stage."""
        if activity == Op.FORWARD.name and not step.sends:
            self._coming.append((step.task.microbatch, HostNumber(outputs.main)))
            while self._coming and self._coming[0][1].is_here:
                self._tell_next()

    def end(self, worker: int) -> None:
        """Wait for the losses that are left, and tell of them."""
        while self._coming:
            self._tell_next()

    def _tell_next(self) -> None:
        microbatch, loss = self._coming.popleft()
        self._tell(microbatch, loss.item())
