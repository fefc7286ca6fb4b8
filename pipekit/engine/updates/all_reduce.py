"""The sum of a stage's gradients over the workers that have it.

Reduce-scatter and all-gather: of m workers each adds up one m-th of the numbers and sends the sum
to the others, so that it sends 2(m-1)/m of the gradients' bytes and receives as many (PipeDream,
section 3.2).  A sum is always added in the order of the workers, so that its bits depend neither on
the transport nor on who comes first.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from pipekit.engine.updates.buckets import Flat

SCATTER, GATHER = range(2)


class Round(NamedTuple):
    """Which sum a message belongs to: the same for all workers.

    Attributes:
        stage: whose gradients, or the number of a tie.
        number: of the bucket, counted over all updates.
        contributors: the workers that have gradients for it, in the order of their sum.
    """

    stage: int
    number: int
    contributors: Sequence[int]


class Channel(Protocol):
    """How workers reach one another that sum gradients, beside the links between stages."""

    def send(self, worker: int, key: tuple[int, int, int], content: Flat) -> None:
        """Send without waiting; the tensors must not be written before they are received."""

    def expect(self, worker: int, key: tuple[int, int, int], room: Flat) -> Callable[[], Flat]:
        """Get ready for what ``worker`` sends by this key; return what waits for it.

        It may, but need not, be written into ``room``, which has its shapes and dtypes.
        """

    def flush(self) -> None:
        """Wait until all that was sent has left."""


class Exchange(Protocol):
    """Sums over the workers that have copies of the same weights.

    Attributes:
        sent: bytes of gradients sent by this worker, by receiver.
    """

    sent: Counter[int]

    def sum(self, round: Round, content: Flat) -> Flat:
        """Return the sum of all contributors' contents; every one of the workers calls this.

        It is the caller's to edit, as is what he gave.
        """


class DirectExchange:
    """Each worker sends each other one its part.

    Args:
        members: all of the workers, in order.
        worker: this one.
        channel: to the others.
    """

    def __init__(self, members: Sequence[int], worker: int, channel: Channel) -> None:
        self.members, self._worker, self._channel = members, worker, channel
        self.sent: Counter[int] = Counter()
        self._rooms: dict[tuple[int, int, torch.dtype], Tensor] = {}

    @torch.no_grad()
    def sum(self, round: Round, content: Flat) -> Flat:
        """See :class:`Exchange`."""
        count, place = len(self.members), self.members.index(self._worker)
        parts = content.numbers.tensor_split(count)
        # Everybody begins with another receiver, so that no link is wanted by two at once.
        others = [(place + step) % count for step in range(1, count)]
        # Receives come first: a link that waits for them is busy in one direction only.
        mine = Flat(parts[place], content.present)
        given = [
            self._expect(SCATTER, round, worker, self._room(worker, mine))
            for worker in round.contributors
            if worker != self._worker
        ]
        # Into what is sent from here: nobody sends his sum before he has received that.
        summed = {
            other: self._expect(
                GATHER,
                round,
                self.members[other],
                Flat(parts[other], torch.empty_like(content.present)),
            )
            for other in others
        }
        if self._worker in round.contributors:
            for other in others:
                self._send(other, SCATTER, round, Flat(parts[other], content.present))
        contents = [wait() for wait in given]
        if self._worker in round.contributors:
            contents.insert(round.contributors.index(self._worker), mine)
        total = _sum(contents)
        for other in others:
            self._send(other, GATHER, round, total)
        parts[place].copy_(total.numbers)
        for other, wait in summed.items():
            part = wait().numbers
            if part.data_ptr() != parts[other].data_ptr():
                parts[other].copy_(part)
        self._channel.flush()
        return Flat(content.numbers, total.present)

    def _room(self, worker: int, like: Flat) -> Flat:
        """Return where to receive a part; of one sum after another, it may be the same place."""
        numbers = like.numbers
        key = worker, numbers.numel(), numbers.dtype
        if key not in self._rooms:
            self._rooms[key] = torch.empty_like(numbers)
        return Flat(self._rooms[key], torch.empty_like(like.present))

    def _expect(self, phase: int, round: Round, worker: int, room: Flat) -> Callable[[], Flat]:
        return self._channel.expect(worker, self._key(phase, round, worker), room)

    def _send(self, place: int, phase: int, round: Round, content: Flat) -> None:
        worker = self.members[place]
        self._channel.send(worker, self._key(phase, round, self._worker), content)
        self.sent[worker] += content.numbers.nbytes

    def _key(self, phase: int, round: Round, sender: int) -> tuple[int, int, int]:
        return 2 * round.stage + phase, sender, round.number


def _sum(contents: Sequence[Flat]) -> Flat:
    first, *others = contents
    if not others:  # a copy: it may lie in the memory of the one who sent it
        return Flat(first.numbers.clone(), first.present)
    second, *others = others
    numbers = first.numbers + second.numbers.to(first.numbers.device)
    present = first.present | second.present
    for other in others:
        numbers += other.numbers.to(numbers.device)
        present |= other.present
    return Flat(numbers, present)
