"""Tells of every microbatch's loss as soon as the last stage has it."""

from collections.abc import Callable

from torch import Tensor

from pipekit.engine.observers.observer import Observer
from pipekit.schedules import Op, Step
from pipekit.trees import Tree


class LossReporter(Observer):
    """Calls a function with the losses of one worker, in training.

    Args:
        tell: called with (microbatch, weighted loss).
    """

    def __init__(self, tell: Callable[[int, Tensor], None]) -> None:
        self._tell = tell

    def after_compute(self, worker: int, step: Step, activity: str, outputs: Tree) -> None:
        """Tell of the loss, if this is a forward of the last stage."""
        if activity == Op.FORWARD.name and not step.sends:
            self._tell(step.task.microbatch, outputs.main)
