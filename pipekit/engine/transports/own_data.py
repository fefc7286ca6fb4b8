"""The data of processes under torchrun, each of which reads all batches itself: the same ones.

The first stage takes a batch's input in one process, the last stage its target in another.  So
checksums are compared, of the first batch at once and of the others at the end of the run: of the
rows, and of all that the loss gets beside the model's input, which in each process may be augmented
otherwise.
"""

import zlib
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from pipekit.devices import is_accelerator
from pipekit.engine.batches import Batch, End
from pipekit.trees import leaves

LOOKED_AT = 8
"""Elements of each row of which a checksum is made, at its beginning and in its middle."""

_REMEDY = (
    "under torchrun every process reads all data itself, so let all of them read the same batches "
    "in the same order: seed alike in every process what shuffles or draws them"
)


class OwnData:
    """The batches of this process, as they are read.

    Args:
        batches: the run's.
        reading: is entered while a batch is read.
        end: is called with the number of batches once they have ended before the run's table.

    Attributes:
        count: batches that were read; the first one is at once.
        sums: their checksums.
    """

    def __init__(
        self,
        batches: Iterable[Batch | End],
        reading: Callable[[], AbstractContextManager[object]],
        end: Callable[[int], object],
    ) -> None:
        self._batches, self._reading, self._end = iter(batches), reading, end
        self.sums = array("q")
        self._first = self._next()

    def __iter__(self) -> Iterator[Batch | End]:
        batch = self._first
        while batch is not None:
            yield batch
            batch = self._next()

    @property
    def count(self) -> int:
        return len(self.sums)

    def _next(self) -> Batch | End | None:
        with self._reading():
            batch = next(self._batches, None)
        if isinstance(batch, End):
            self._end(self.count)
        elif batch is not None:
            self.sums.append(checksum(batch))
        return batch


def require_same(everybodys: Sequence[Sequence[int]]) -> None:
    """Raise ValueError unless all workers' batches have the same checksums, as far as both read."""
    first = everybodys[0]
    for worker, sums in enumerate(everybodys):
        for batch, (one, other) in enumerate(zip(first, sums, strict=False)):
            if one != other:
                raise ValueError(
                    f"batch {batch} of worker {worker} differs from that of worker 0: {_REMEDY}"
                )


def require_as_many(counts: list[int]) -> None:
    """Raise ValueError unless all workers have equally many batches."""
    for worker, count in enumerate(counts):
        if count != counts[0]:
            raise ValueError(unequal({0: counts[0], worker: count}))


def unequal(counts: dict[int, Any]) -> str:
    """Say how many batches workers have, that should have equally many."""
    each = " and ".join(f"worker {worker} has {count}" for worker, count in counts.items())
    return f"the numbers of batches differ: {each}; {_REMEDY}"


def checksum(batch: Batch) -> int:
    """Return a checksum of a batch's rows; tensors on accelerators count by their shapes alone."""
    inputs = {id(tensor) for tensor in leaves(batch.input)}
    target = batch.whole_target
    entries = [target] if isinstance(target, Tensor) else pytree.tree_leaves(target)
    others = [entry for entry in entries if id(entry) not in inputs]
    total = zlib.crc32(repr((batch.rows, batch.row_shapes)).encode())
    for entry in others or entries:
        total = zlib.crc32(_bytes(entry), total)
    return total


def _bytes(entry: Any) -> Any:
    """Return what a checksum is made of; objects that only their program can compare give none."""
    if isinstance(entry, Tensor):
        if is_accelerator(entry.device) or entry.is_nested or entry.layout is not torch.strided:
            return str(entry.dtype).encode()
        try:  # each call of torch takes 20 us where the layers' passes have filled the caches
            entry = entry.numpy(force=True)
        except TypeError:  # a type that numpy lacks, say bfloat16
            entry = entry.float().numpy(force=True)
    if isinstance(entry, np.ndarray) and entry.dtype != object:
        rows = entry.reshape(len(entry) if entry.ndim and len(entry) else 1, -1)
        middle = rows.shape[1] // 2
        if middle > LOOKED_AT:
            return rows[:, :LOOKED_AT].tobytes() + rows[:, middle : middle + LOOKED_AT].tobytes()
        return rows.tobytes()
    return repr(entry).encode() if isinstance(entry, (str, bytes, int, float)) else b""
