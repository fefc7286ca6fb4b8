"""The sum of a stage's gradients over the workers that have it.

Reduce-scatter and all-gather: of m workers each adds up one m-th of the numbers and sends the sum
to the others, so that it sends 2(m-1)/m of the gradients' bytes and receives as many (PipeDream,
section 3.2).  A sum is always added in the order of the workers, so that its bits depend neither on
the transport nor on who comes first.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from pipekit.engine.transport import GATHER, SCATTER, Channel, FlatBucket, PartKey, Phase, SumPart


class ReduceKey(NamedTuple):
    """Which sum is meant: the same for all workers.

    Attributes:
        stage: whose gradients, or the number of a tie.
        number: of the bucket, counted over all updates.
        contributors: the workers that have gradients for it, in the order of their sum.
        microbatch: the last one whose gradients it adds up; -1: it is made wherever the run ends.
    """

    stage: int
    number: int
    contributors: Sequence[int]
    microbatch: int = -1


PartListener = Callable[[int, PartKey, FlatBucket], object]
"""Is told of (receiver, key, content) before a part of a sum is sent."""


class AllReduce:
    """Sums over the workers that have copies of the same weights: each sends each other one a part.

    Args:
        members: all of the workers, in order.
        worker: this one.
        channel: to the others.
        listeners: are told of every part that this worker sends.

    Attributes:
        sent_bytes: bytes of gradients sent by this worker, by receiver.
    """

    def __init__(
        self,
        members: Sequence[int],
        worker: int,
        channel: Channel,
        listeners: Sequence[PartListener] = (),
    ) -> None:
        self.members, self._worker, self._channel = members, worker, channel
        self._listeners = listeners
        self.sent_bytes: Counter[int] = Counter()
        self._rooms: dict[tuple[int, int, torch.dtype], Tensor] = {}

    @torch.no_grad()
    def sum(self, key: ReduceKey, content: FlatBucket) -> FlatBucket:
        """Return the sum of all contributors' contents; every one of the workers calls this.

        It is the caller's to edit, as is what he gave.

        Raises:
            Ended: the run ends before the sum's microbatch.
        """
        count, place = len(self.members), self.members.index(self._worker)
        pieces = content.numbers.tensor_split(count)
        # Everybody begins with another receiver, so that no link is wanted by two at once.
        others = [(place + step) % count for step in range(1, count)]
        contributes = self._worker in key.contributors
        mine = FlatBucket(pieces[place], content.present)
        contents = self._exchange(
            SCATTER,
            key,
            {p: FlatBucket(pieces[p], content.present) for p in others} if contributes else {},
            {
                self.members.index(worker): self._room(worker, mine)
                for worker in key.contributors
                if worker != self._worker
            },
        )
        if contributes:
            contents.insert(key.contributors.index(self._worker), mine)
        total = _sum(contents)
        # Into what was sent from here: nobody sends his sum before he has received that.
        rooms = {p: FlatBucket(pieces[p], torch.empty_like(content.present)) for p in others}
        summed = self._exchange(GATHER, key, dict.fromkeys(others, total), rooms)
        pieces[place].copy_(total.numbers)
        for other, piece in zip(others, summed, strict=True):
            if piece.numbers.data_ptr() != pieces[other].data_ptr():
                pieces[other].copy_(piece.numbers)
        self._channel.finish(key.stage, key.number, content.numbers.nbytes)
        return FlatBucket(content.numbers, total.present)

    def _exchange(
        self,
        phase: Phase,
        key: ReduceKey,
        sends: Mapping[int, FlatBucket],
        receives: Mapping[int, FlatBucket],
    ) -> list[FlatBucket]:
        """Exchange parts with members, which are given by their places."""
        own = _part_key(phase, key, self._worker)
        for place, content in sends.items():
            worker = self.members[place]
            for tell in self._listeners:
                tell(worker, own, content)
            self.sent_bytes[worker] += content.numbers.nbytes
        members = self.members
        return self._channel.exchange(
            [SumPart(members[place], own, content) for place, content in sends.items()],
            [
                SumPart(members[place], _part_key(phase, key, members[place]), room)
                for place, room in receives.items()
            ],
            key.microbatch,
        )

    def _room(self, worker: int, like: FlatBucket) -> FlatBucket:
        """Return where to receive a part; of one sum after another, it may be the same place."""
        numbers = like.numbers
        key = worker, numbers.numel(), numbers.dtype
        if key not in self._rooms:
            self._rooms[key] = torch.empty_like(numbers)
        return FlatBucket(self._rooms[key], torch.empty_like(like.present))


def _part_key(phase: Phase, key: ReduceKey, sender: int) -> PartKey:
    return PartKey(2 * key.stage + phase, sender, key.number)


def _sum(contents: Sequence[FlatBucket]) -> FlatBucket:
    first, *others = contents
    if not others:  # a copy: it may lie in the memory of the one who sent it
        return FlatBucket(first.numbers.clone(), first.present)
    second, *others = others
    numbers = first.numbers + second.numbers
    present = first.present | second.present
    for other in others:
        numbers += other.numbers
        present |= other.present
    return FlatBucket(numbers, present)
