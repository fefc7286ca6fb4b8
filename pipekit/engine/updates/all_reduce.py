"""Sums over the workers that have the same weights: gradients, ties, running statistics.

Reduce-scatter and all-gather: of m workers each adds up one m-th of the numbers and sends the sum
to the others, so that it sends 2(m-1)/m of the gradients' bytes and receives as many (PipeDream,
section 3.2).  A sum is always added in the order of the workers, so that its bits depend neither on
the transport nor on who comes first.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from pipekit.devices import CPU, synchronize
from pipekit.engine.observers.observer import Observer
from pipekit.engine.transport import GATHER, SCATTER, Exchange, FlatBucket, PartKey, Parts
from pipekit.engine.updates.weight_versions import WeightVersions
from pipekit.engine.updates.weights import Gradients, parameter_buckets
from pipekit.partition.partition import Tie


class ReduceKey(NamedTuple):
    """Which sum is meant: the same for all workers."""

    stage: int  # whose gradients, or the number of a tie
    number: int  # of the bucket, counted over all updates
    contributors: Sequence[int]  # the workers that have gradients for it, in the order of their sum
    microbatch: int = -1  # the last whose gradients it adds up; -1: made wherever the run ends


class AllReduce:
    """Sums over the workers that have copies of the same weights: each sends each other a part."""

    def __init__(
        self,
        members: Sequence[int],
        worker: int,
        exchange: Exchange,
        observer: Observer | None = None,
    ) -> None:
        self.members, self._worker, self._exchange = members, worker, exchange
        self._observer = observer or Observer()  # hears of each part before it is sent
        self.sent_bytes: Counter[int] = Counter()  # by this worker, by receiver
        self._rooms: dict[tuple[int, int, torch.dtype], Tensor] = {}

    @torch.no_grad()
    def sum(self, key: ReduceKey, content: FlatBucket) -> FlatBucket:
        """Return the sum of all contributors' contents, to edit; each of the workers calls this."""
        count, place = len(self.members), self.members.index(self._worker)
        pieces = dict(zip(self.members, content.numbers.tensor_split(count), strict=True))
        # Everybody begins with another receiver, so that no link is wanted by two at once.
        others = [self.members[(place + step) % count] for step in range(1, count)]
        contributes = self._worker in key.contributors
        mine = FlatBucket(pieces[self._worker], content.present)
        sends = {w: FlatBucket(pieces[w], content.present) for w in others if contributes}
        givers = [worker for worker in key.contributors if worker != self._worker]
        contents = self._exchanged(SCATTER, key, sends, {w: self._room(w, mine) for w in givers})
        if contributes:
            contents.insert(key.contributors.index(self._worker), mine)
        total = _sum(contents)
        # Into what was sent from here: nobody sends his sum before he has received that.
        rooms = {w: FlatBucket(pieces[w], torch.empty_like(content.present)) for w in others}
        summed = self._exchanged(GATHER, key, dict.fromkeys(others, total), rooms)
        pieces[self._worker].copy_(total.numbers)
        for other, piece in zip(others, summed, strict=True):
            if piece.numbers.data_ptr() != pieces[other].data_ptr():
                pieces[other].copy_(piece.numbers)
        return FlatBucket(content.numbers, total.present)

    def _exchanged(
        self, phase: int, key: ReduceKey, sends: Parts, receives: Parts
    ) -> list[FlatBucket]:
        part = PartKey(phase, key.stage, self._worker, key.number)
        for worker, content in sends.items():
            self._observer.part_sent(self._worker, worker, part, content)
            self.sent_bytes[worker] += content.numbers.nbytes
        return self._exchange(part, sends, receives, key.microbatch)

    def _room(self, worker: int, like: FlatBucket) -> FlatBucket:
        """Return where to receive a part; of one sum after another, it may be the same place."""
        numbers = like.numbers
        key = worker, numbers.numel(), numbers.dtype
        if key not in self._rooms:
            self._rooms[key] = torch.empty_like(numbers)
        return FlatBucket(self._rooms[key], torch.empty_like(like.present))


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


class TiedGradients:
    """Shares the gradients of one tie with the other workers, on the worker's own thread."""

    def __init__(
        self,
        number: int,
        tie: Tie,
        worker: int,
        stage_workers: Sequence[Sequence[int]],
        weights: Mapping[int, WeightVersions],
        all_reduce: AllReduce,
        device: torch.device,
    ) -> None:
        self._number, self._all_reduce, self._device = number, all_reduce, device
        copies = {s: p for s, p in zip(tie.stages, tie.places, strict=True) if s in weights}
        first, *_ = copies
        # Where a parameter's copies stand, by the number of the first of them.
        self._copies = {
            each[0]: list(zip(copies, each, strict=True))
            for each in zip(*copies.values(), strict=True)
        }
        shared = {p: weights[first].parameters[0][p] for p in copies[first]}
        self._buckets = parameter_buckets(shared)
        # All workers of the first stage have its sum: one gives it.
        self._giver = stage_workers[tie.stages[0]][0]
        self._stage = first if worker == self._giver else None

    def share(self, gradients: Mapping[int, Gradients], update: int) -> None:
        """Put the first stage's gradients into the worker's stages', until the next call."""
        contents = []
        for place, bucket in enumerate(self._buckets):
            own = None if self._stage is None else gradients[self._stage]
            content = bucket.flat(own and [own[number] for number in bucket.parameters])
            number = (update - 1) * len(self._buckets) + place
            contents.append(
                self._all_reduce.sum(ReduceKey(self._number, number, [self._giver]), content)
            )
        synchronize(self._device)
        for bucket, content in zip(self._buckets, contents, strict=True):
            for number, total in bucket.lend(content):
                (stage, place), *others = self._copies[number]
                gradients[stage][place] = total
                for stage, place in others:  # each scales its own
                    gradients[stage][place] = None if total is None else total.clone()


AVERAGED = ("running_mean", "running_var")
_FIRST = -(1 << 32)
"""The number of the first sum: those of gradients are above."""


@torch.no_grad()
def average(module: nn.Module, stage: int, used: Sequence[int], all_reduce: AllReduce) -> None:
    """Give the norms of a stage the mean statistics of those workers that a run has used.

    The count of batches becomes the first worker's.  No bit changes of what is equal.
    """
    norms = [each for each in module.modules() if isinstance(each, _NormBase)]
    found = (
        norm._buffers.get(name) for norm in norms for name in (*AVERAGED, "num_batches_tracked")
    )
    buffers = [buffer for buffer in found if buffer is not None]
    buckets = parameter_buckets(dict(enumerate(buffers)))
    for number, bucket in enumerate(buckets):
        own: list[Tensor | None] = [buffers[n] for n in bucket.parameters]
        each = [
            all_reduce.sum(
                ReduceKey(stage, _FIRST + number * len(used) + place, [worker]), bucket.flat(own)
            ).numbers
            for place, worker in enumerate(used)
        ]
        present = torch.ones(len(own), dtype=torch.uint8, device=CPU)
        for n, value in bucket.gradients(FlatBucket(_mean(each), present)):
            assert value is not None
            buffers[n].copy_(value)


def merged(buffers: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Return what :func:`average` would make of the buffers of a stage's workers, by name."""
    first = dict(buffers[0])
    for name in first:
        if name.rpartition(".")[2] in AVERAGED:
            first[name] = _mean([each[name] for each in buffers])
    return first


def _mean(values: Sequence[Tensor]) -> Tensor:
    """Return the mean of tensors; of whole numbers, the first."""
    first, *others = values
    if not first.is_floating_point() or not others:
        return first
    # As distances from the first, so that what is equal stays as it is.
    distances = torch.stack([other - first for other in others])
    return first + distances.sum(0) / len(values)
