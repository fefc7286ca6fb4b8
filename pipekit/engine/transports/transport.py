"""What a worker needs of the others: one small protocol behind which all transports stand."""

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from pipekit.engine.updates.all_reduce import Exchange
from pipekit.schedules import Message
from pipekit.trees import Tree


class Links(Protocol):
    """A worker's connections."""

    def require_peers(self) -> None:
        """Raise Aborted if it is known that another worker has failed."""

    def receive(self, message: Message, source: int) -> Tree:
        """Wait for the content of a message from a worker, on this device."""

    def send(self, message: Message, destination: int, content: Tree) -> None:
        """Send the content of a message to a worker, without waiting for it."""

    def all_reduce(self, values: Tensor, update: int) -> Tensor:
        """Return the sum of all busy workers' ``values``, added in the order of the workers."""

    def exchange(self, members: Sequence[int], tied: bool = False) -> Exchange:
        """Return what sums over some workers, this one among them.

        They are those of a stage, who sum in a thread beside the worker's own, or ``tied``: those
        who have copies of the weights that stages share, in the worker's own thread.
        """

    def finish(self) -> None:
        """Wait until everything that was sent has left this worker."""


class Aborted(Exception):
    """Another worker has failed: nothing that this one waits for will come."""
