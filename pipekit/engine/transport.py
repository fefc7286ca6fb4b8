"""How a worker reaches the others, and hears of the end of a run."""

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from torch import Tensor

from pipekit.engine.feed import StopPoint
from pipekit.schedules import Message
from pipekit.trees import Tree


class Aborted(Exception):
    """Another worker has failed: nothing that this one waits for will come."""


class FlatBucket(NamedTuple):
    """The gradients of some parameters as one tensor that can be sent.

    Attributes:
        numbers: gradients, one behind the other, [elements]; zeros for missing ones.
        present: which there are, uint8 [parameters].
    """

    numbers: Tensor
    present: Tensor


SCATTER, GATHER = range(2)
"""The phases of a sum: parts go to who adds them up; the sums of the parts come back."""


class PartKey(NamedTuple):
    """What tells the messages of sums apart that one worker sends another.

    Attributes:
        place: twice the stage's number (or the tie's), plus the phase, SCATTER or GATHER.
        sender: the worker that sends the part.
        number: of the bucket, counted over all updates.
    """

    place: int
    sender: int
    number: int

    @property
    def phase(self) -> int:
        """SCATTER or GATHER."""
        return self.place % 2


class SumPart(NamedTuple):
    """A part of a sum on its way to or from a worker: its content, or room for it."""

    worker: int
    key: PartKey
    content: FlatBucket


Exchange = Callable[[Sequence[SumPart], Sequence[SumPart], int], list[FlatBucket]]
"""Sends parts to other workers, and returns those that are received from others.

All of them are on their way at once, whatever their order: where messages between two workers keep
it, one who waits for a part before it sends its own would wait for ever.  A received part may, but
need not, be written into its room.  The last microbatch whose gradients are summed is -1 if the sum
is made wherever the run ends; BeyondStop is raised if the run ends before it.
"""


class Transport(Protocol):
    """One worker's connections to all others."""

    def require_peers(self) -> None:
        """Raise Aborted if it is known that another worker has failed."""

    def receive(self, message: Message, source: int) -> Tree:
        """Wait for the content of a message from a worker, on this worker's device.

        BeyondStop is raised if the run ends before its microbatch.
        """

    def send(self, message: Message, destination: int, content: Tree) -> None:
        """Send the content of a message to a worker, without waiting for it."""

    def all_reduce(self, values: Sequence[Tensor], update: int) -> list[Tensor]:
        """Return the sums of all busy workers' ``values`` for an update, once they are here.

        They are added in the order of the workers.  Each lies where this worker's own value lies:
        on the host or on its device.
        """

    def exchange_among(self, members: Sequence[int], tied: bool = False) -> Exchange:
        """Return how some workers, this one among them, exchange parts of sums.

        They are those of a stage, who sum in a thread beside the worker's own, or ``tied``: those
        who have copies of the weights that stages share, in the worker's own thread.
        """

    def finish(self) -> None:
        """Wait until everything that was sent has left this worker."""

    @property
    def stop_point(self) -> StopPoint:
        """Where the run ends, as far as this worker knows."""

    def end(self, microbatch: int) -> bool:
        """Let the run end before a microbatch, for all workers, which finish what comes before it.

        Return False if these workers cannot hear of it in the midst of a run.
        """
