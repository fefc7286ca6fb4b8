"""What a worker needs in order to reach the others: the protocols behind which transports stand."""

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from torch import Tensor

from pipekit.schedules import Message
from pipekit.trees import Tree


class FlatBucket(NamedTuple):
    """The gradients of some parameters as one tensor that can be sent.

    Attributes:
        numbers: gradients, one behind the other, [elements]; zeros for those that there are not.
        present: which there are, uint8 [parameters].
    """

    numbers: Tensor
    present: Tensor


Phase = int
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
    def phase(self) -> Phase:
        """SCATTER or GATHER."""
        return self.place % 2


class Channel(Protocol):
    """How workers reach one another that sum gradients, beside the messages between stages."""

    def send(self, worker: int, key: PartKey, content: FlatBucket) -> None:
        """Send without waiting; the tensors must not be written before they are received."""

    def expect(self, worker: int, key: PartKey, room: FlatBucket) -> Callable[[], FlatBucket]:
        """Get ready for what ``worker`` sends by this key; return what waits for it.

        It may, but need not, be written into ``room``, which has its shapes and dtypes.
        """

    def finish(self, number: int, size: int) -> None:
        """End a sum: return when all that was sent for it has left.

        Args:
            number: of the bucket, counted over all updates.
            size: bytes of the whole sum.
        """


class Transport(Protocol):
    """One worker's connections to all others."""

    def require_peers(self) -> None:
        """Raise Aborted if it is known that another worker has failed."""

    def receive(self, message: Message, source: int) -> Tree:
        """Wait for the content of a message from a worker, on this worker's device."""

    def send(self, message: Message, destination: int, content: Tree) -> None:
        """Send the content of a message to a worker, without waiting for it."""

    def all_reduce(self, values: Tensor, update: int) -> Tensor:
        """Return the sum of all busy workers' ``values``, added in the order of the workers."""

    def channel(self, members: Sequence[int], tied: bool = False) -> Channel:
        """Return how some workers, this one among them, reach one another to sum gradients.

        They are those of a stage, who sum in a thread beside the worker's own, or ``tied``: those
        who have copies of the weights that stages share, in the worker's own thread.
        """

    def finish(self) -> None:
        """Wait until everything that was sent has left this worker."""


class Aborted(Exception):
    """Another worker has failed: nothing that this one waits for will come."""
