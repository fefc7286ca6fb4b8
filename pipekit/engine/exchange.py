"""The sum of a stage's gradients over the workers that have it.

Reduce-scatter and all-gather: of m workers each adds up one m-th of the numbers and sends the sum
to the others, so that it sends 2(m-1)/m of the gradients' bytes and receives as many (PipeDream,
section 3.2).  A sum is always added in the order of the workers, so that its bits depend neither on
the transport nor on who comes first.
"""

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch

from pipekit.engine.buckets import Flat

SCATTER, GATHER = range(2)


class Round(NamedTuple):
    """Which sum a message belongs to: the same for all workers.

    Attributes:
        stage: whose gradients.
        number: of the bucket, counted over all updates.
        contributors: the workers that have gradients for it, in order.
    """

    stage: int
    number: int
    contributors: Sequence[int]


class Channel(Protocol):
    """How the workers of a stage reach one another, beside the links between stages."""

    def send(self, worker: int, key: tuple[int, int, int], content: Flat) -> None:
        """Send without waiting; the tensors must not be written before they are received."""

    def receive(self, worker: int, key: tuple[int, int, int], like: Flat) -> Flat:
        """Wait for what ``worker`` sent by this key, of the shapes and dtypes of ``like``."""

    def flush(self) -> None:
        """Wait until all that was sent has left."""


class Exchange(Protocol):
    """Sums over the workers of a stage.

    Attributes:
        sent: bytes of gradients sent by this worker, by receiver.
    """

    sent: Counter[int]

    def sum(self, round: Round, content: Flat) -> Flat:
        """Return the sum of all contributors' contents; every worker of the stage calls this."""


class DirectExchange:
    """Each worker sends each other one its part.

    Args:
        members: the workers of the stage, in order.
        worker: this one.
        channel: to the others.
    """

    def __init__(self, members: Sequence[int], worker: int, channel: Channel) -> None:
        self.members, self._worker, self._channel = members, worker, channel
        self.sent: Counter[int] = Counter()

    @torch.no_grad()
    def sum(self, round: Round, content: Flat) -> Flat:
        """See :class:`Exchange`."""
        count, place = len(self.members), self.members.index(self._worker)
        parts = content.numbers.tensor_split(count)
        # Everybody begins with another receiver, so that no link is wanted by two at once.
        others = [(place + step) % count for step in range(1, count)]
        if self._worker in round.contributors:
            for other in others:
                self._send(other, SCATTER, round, Flat(parts[other], content.present))
        mine = Flat(parts[place], content.present)
        given = [
            mine
            if worker == self._worker
            else self._channel.receive(worker, self._key(SCATTER, round, worker), mine)
            for worker in round.contributors
        ]
        total = _sum(given)
        for other in others:
            self._send(other, GATHER, round, total)
        parts[place].copy_(total.numbers)
        for other in others:
            worker = self.members[other]
            like = Flat(parts[other], content.present)
            part = self._channel.receive(worker, self._key(GATHER, round, worker), like)
            parts[other].copy_(part.numbers)  # that worker has read what was sent from here
        self._channel.flush()
        return Flat(content.numbers, total.present)

    def _send(self, place: int, phase: int, round: Round, content: Flat) -> None:
        worker = self.members[place]
        self._channel.send(worker, self._key(phase, round, self._worker), content)
        self.sent[worker] += content.numbers.nbytes

    def _key(self, phase: int, round: Round, sender: int) -> tuple[int, int, int]:
        return 2 * round.stage + phase, sender, round.number


def _sum(contents: Sequence[Flat]) -> Flat:
    numbers, present = (tensor.clone() for tensor in contents[0])
    for other in contents[1:]:
        numbers += other.numbers
        present |= other.present
    return Flat(numbers, present)
