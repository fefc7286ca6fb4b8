"""How a worker reaches the others, and hears of the end of a run."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

from torch import Tensor

from pipekit.engine.feed import StopPoint
from pipekit.schedules import Message
from pipekit.trees import Tree


class Aborted(Exception):
    """Another worker has failed: nothing that this one waits for will come."""


class FlatBucket(NamedTuple):
    """The gradients of some parameters as one tensor that can be sent."""

    numbers: Tensor  # one gradient behind the other, [elements]; zeros for missing ones
    present: Tensor  # which there are, uint8 [parameters]


SCATTER, GATHER = range(2)
"""The phases of a sum: parts go to who adds them up; the sums of the parts come back."""


class PartKey(NamedTuple):
    """What tells the messages of sums apart that one worker sends another."""

    phase: int  # SCATTER or GATHER
    stage: int  # or the number of a tie
    sender: int
    number: int  # of the bucket, counted over all updates


Parts = Mapping[int, FlatBucket]
"""Parts of a sum by the worker to whom they go or from whom they come: contents, or room."""

Exchange = Callable[[PartKey, Parts, Parts, int], list[FlatBucket]]
"""Sends parts, of this worker's key, and returns those that are received, maybe in their room.

All of them are on their way at once, so that no worker waits for a part before it sends its own.
The last argument is the last microbatch whose gradients are summed; BeyondStop is raised if the run
ends before it (-1: the sum is made wherever the run ends).
"""


class Transport(Protocol):
    """One worker's connections to all others."""

    def require_peers(self) -> None:
        """Raise Aborted if it is known that another worker has failed."""

    def receive(self, message: Message, source: int) -> Tree:
        """Wait for a message's content, on this device; BeyondStop: the run ends before it."""

    def send(self, message: Message, destination: int, content: Tree) -> None:
        """Send the content of a message to a worker, without waiting for it."""

    def all_reduce(self, values: Sequence[Tensor], update: int) -> list[Tensor]:
        """Return sums of all busy workers' ``values``, in their order, each where its own lies."""

    def exchange_among(self, members: Sequence[int], tied: bool = False) -> Exchange:
        """Return how the workers of a stage exchange parts of sums, in a thread beside their own.

        Those ``tied`` by copies of weights that stages share do so in their own thread.
        """

    def finish(self) -> None:
        """Wait until everything that was sent has left this worker."""

    @property
    def stop_point(self) -> StopPoint:
        """Where the run ends, as far as this worker knows."""

    def end(self, microbatch: int) -> bool:
        """Let the run end before a microbatch for all workers; False: they cannot hear of it."""
