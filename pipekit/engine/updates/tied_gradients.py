"""The gradients of weights that several stages share, at an update.

The first stage has added them all up, since the backwards of later stages have sent theirs there
(:mod:`pipekit.partition.ties`).  At each update it gives the sum to the others, so that all copies
take the same step and stay equal for ever.
"""

from collections.abc import Mapping, Sequence

import torch

from pipekit.devices import synchronize
from pipekit.engine.transport import FlatBucket
from pipekit.engine.updates.all_reduce import AllReduce, ReduceKey
from pipekit.engine.updates.buckets import Gradients, parameter_buckets
from pipekit.engine.updates.weights import Weights
from pipekit.partition.ties import Tie


class TiedGradients:
    """Shares the gradients of one tie with the other workers, on the worker's own thread."""

    def __init__(
        self,
        number: int,
        tie: Tie,
        worker: int,
        stage_workers: Sequence[Sequence[int]],
        weights: Mapping[int, Weights],
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
        self._buckets = parameter_buckets(shared, weights[first].take)
        # All workers of the first stage have its sum: one gives it.
        self._giver = stage_workers[tie.stages[0]][0]
        self._stage = first if worker == self._giver else None
        self._lent: list[FlatBucket] = []  # what the last update's gradients lie in

    @property
    def sent_bytes(self) -> dict[int, int]:
        """Bytes of gradients sent, by receiver."""
        return dict(self._all_reduce.sent_bytes)

    def share(self, gradients: Mapping[int, Gradients], update: int) -> None:
        """Put the gradients of the first stage into those of the worker's stages, by index.

        They last until the next call.
        """
        contents = []
        for place, bucket in enumerate(self._buckets):
            own = None if self._stage is None else gradients[self._stage]
            content = bucket.flat(own and [own[number] for number in bucket.parameters])
            number = (update - 1) * len(self._buckets) + place
            contents.append(
                self._all_reduce.sum(ReduceKey(self._number, number, [self._giver]), content)
            )
        synchronize(self._device)
        # All workers have finished the last update's sums now, and read what they were sent of it.
        for bucket, content in zip(self._buckets, self._lent, strict=False):
            bucket.release(content)
        self._lent = contents
        for bucket, content in zip(self._buckets, contents, strict=True):
            for number, total in bucket.gradients(content):
                (stage, place), *others = self._copies[number]
                gradients[stage][place] = total
                for stage, place in others:  # each scales its own
                    gradients[stage][place] = None if total is None else total.clone()
