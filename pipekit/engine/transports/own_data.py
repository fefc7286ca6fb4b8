"""The data of processes under torchrun, each of which reads all batches itself: the same ones.

The first stage takes a batch's input in one process, the last stage its target in another.  So
whoever sends the first activation of a batch over a link sends a checksum before it: of the rows,
and of all that the loss gets beside the model's input, which in each process may be augmented
otherwise.
"""

import zlib
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from pipekit.devices import is_accelerator
from pipekit.engine.batches import Batch, End
from pipekit.schedules import Message, Payload
from pipekit.trees import leaves

LOOKED_AT = 1 << 10
"""Elements of each tensor of which a checksum is made, evenly spread if it has more."""

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
        count: batches that were read.
    """

    def __init__(
        self,
        batches: Iterable[Batch | End],
        reading: Callable[[], AbstractContextManager[object]],
        end: Callable[[int], object],
    ) -> None:
        self._batches, self._reading, self._end = batches, reading, end
        self._stops, self._sums = array("q"), array("q")
        self._compared: dict[tuple[bool, int], int] = {}  # up to which microbatch, by link

    @property
    def count(self) -> int:
        return len(self._stops)

    def __iter__(self) -> Iterator[Batch | End]:
        batches = iter(self._batches)
        while True:
            with self._reading():
                batch = next(batches, None)
            if batch is None:
                return
            if isinstance(batch, End):
                self._end(self.count)
            else:
                self._stops.append((self._stops[-1] if self._stops else 0) + batch.parts)
                self._sums.append(checksum(batch))
            yield batch

    def goes_before(self, message: Message, peer: int, sent: bool) -> bool:
        """Return whether a checksum goes before a message to (``sent``) or from a peer."""
        if message.microbatch < self._compared.get((sent, peer), 0):
            return False
        return message.payload is Payload.ACTIVATION

    def checksum_before(self, message: Message, peer: int, sent: bool) -> Tensor:
        """Return the checksum that goes before a message, whose microbatch was read."""
        batch = bisect_right(self._stops, message.microbatch)
        self._compared[sent, peer] = self._stops[batch]
        return torch.tensor([batch, self._sums[batch]])

    @staticmethod
    def require_same(mine: Tensor, theirs: Tensor, worker: int, peer: int) -> None:
        """Raise ValueError unless two workers have read the same rows."""
        if not torch.equal(mine, theirs):
            raise ValueError(
                f"batch {int(mine[0])} of worker {worker} differs from that of worker {peer}: "
                f"{_REMEDY}"
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
    entries = pytree.tree_leaves(batch.whole_target)
    others = [entry for entry in entries if id(entry) not in inputs]
    total = zlib.crc32(repr((batch.rows, batch.row_shapes)).encode())
    for entry in others or entries:
        total = zlib.crc32(_bytes(entry), total)
    return total


def _bytes(entry: Any) -> Any:
    """Return what a checksum is made of; objects that only their program can compare give none."""
    if isinstance(entry, np.ndarray) and entry.dtype != object:
        return entry.reshape(-1)[:: 1 + entry.size // LOOKED_AT].tobytes()
    if isinstance(entry, Tensor):
        if is_accelerator(entry.device) or entry.is_nested or entry.layout is not torch.strided:
            return str(entry.dtype).encode()
        flat = entry.detach().resolve_conj().reshape(-1)
        flat = flat[:: 1 + flat.numel() // LOOKED_AT].contiguous()
        return flat.view(torch.uint8).numpy() if flat.numel() else b""
    return repr(entry).encode() if isinstance(entry, (str, bytes, int, float)) else b""
