"""Batch norm's running statistics of a stage on several workers, each of which sees other data."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from pipekit.engine.transport import FlatBucket
from pipekit.engine.updates.all_reduce import AllReduce, ReduceKey
from pipekit.engine.updates.buckets import parameter_buckets

AVERAGED = ("running_mean", "running_var")
COUNT = "num_batches_tracked"


_FIRST = -(1 << 32)
"""The number of the first sum: those of gradients are above."""


@torch.no_grad()
def average(module: nn.Module, stage: int, members: Sequence[int], all_reduce: AllReduce) -> None:
    """Give the norms of a stage the same statistics on all of its workers, at the end of a run.

    Each worker's running averages estimate the same mean and variance, and their mean does so
    better.  The count of batches becomes the first worker's.  No bit changes of what is equal.
    """
    norms = [each for each in module.modules() if isinstance(each, _NormBase)]
    found = (norm._buffers.get(name) for norm in norms for name in (*AVERAGED, COUNT))
    buffers = [buffer for buffer in found if buffer is not None]
    buckets = parameter_buckets(dict(enumerate(buffers)), lambda _, ns: [buffers[n] for n in ns])
    for number, bucket in enumerate(buckets):
        own: list[Tensor | None] = [buffers[n] for n in bucket.parameters]
        each = [
            all_reduce.sum(
                ReduceKey(stage, _FIRST + number * len(members) + place, [worker]), bucket.flat(own)
            ).numbers
            for place, worker in enumerate(members)
        ]
        present = torch.ones(len(own), dtype=torch.uint8)
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
