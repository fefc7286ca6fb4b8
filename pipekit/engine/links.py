"""What a worker needs of the others: one small protocol behind which all transports stand."""

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from pipekit.engine.exchange import Exchange
from pipekit.schedules import Step
from pipekit.trees import Tree


class Links(Protocol):
    """A worker's connections."""

    def require_peers(self) -> None:
        """Raise Aborted if it is known that another worker has failed."""

    def receive(self, step: Step) -> Tree:
        """Wait for the message that ``step`` needs from ``step.source``, on this device."""

    def send(self, step: Step, message: Tree) -> None:
        """Send the result of ``step`` to ``step.destination``, without waiting for it."""

    def all_reduce(self, values: Tensor, update: int) -> Tensor:
        """Return the sum of all busy workers' ``values``, added in the order of the workers."""

    def exchange(self, members: Sequence[int]) -> Exchange:
        """Return what sums over the workers of a stage, this one among them."""

    def finish(self) -> None:
        """Wait until everything that was sent has left this worker."""


class Aborted(Exception):
    """Another worker has failed: nothing that this one waits for will come."""
