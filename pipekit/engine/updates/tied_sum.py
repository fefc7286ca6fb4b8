"""The sum of the gradients of weights that several stages share.

At each update the gradients of the copies are summed, each stage's own sum in the order of the
stages (those of one worker first), so that all copies take the same step and stay equal for ever.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from pipekit.devices import synchronize
from pipekit.engine.transport import FlatBucket
from pipekit.engine.updates.all_reduce import AllReduce, ReduceKey
from pipekit.engine.updates.buckets import Gradients, parameter_buckets
from pipekit.engine.updates.weights import Weights
from pipekit.partition.ties import Tie


class TiedSum:
    """Sums the gradients of a worker's copies with those of the others, on the worker's thread.

    Args:
        number: of the tie.
        tie: what is shared by which stages.
        worker: this one.
        stage_workers: the workers of every stage.
        weights: of the worker's stages, by index.
        all_reduce: with all workers that have a copy.
        device: where the gradients lie.
    """

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
        # All workers of a stage have the stage's sum: the first one contributes it.
        self._contributors = list(dict.fromkeys(stage_workers[stage][0] for stage in tie.stages))
        self._contributed = {stage for stage in copies if stage_workers[stage][0] == worker}
        self._lent: list[FlatBucket] = []  # what the last update's gradients lie in

    @property
    def sent_bytes(self) -> dict[int, int]:
        """Bytes of gradients sent, by receiver."""
        return dict(self._all_reduce.sent_bytes)

    def sum(self, gradients: Mapping[int, Gradients], update: int) -> None:
        """Put the sums over all copies into the gradients of the worker's stages, by index.

        They last until the next call.
        """
        contents = []
        for place, bucket in enumerate(self._buckets):
            own = bucket.flat([self._own(gradients, number) for number in bucket.parameters])
            key = ReduceKey(
                self._number, (update - 1) * len(self._buckets) + place, self._contributors
            )
            contents.append(self._all_reduce.sum(key, own))
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

    def _own(self, gradients: Mapping[int, Gradients], number: int) -> Tensor | None:
        """Return the sum over the copies of one parameter that this worker contributes."""
        total = None
        for stage, place in self._copies[number]:
            gradient = gradients[stage][place] if stage in self._contributed else None
            if gradient is not None:
                total = gradient if total is None else total + gradient
        return total
