"""What a worker process hands its parent: tensors lie in shared memory, the rest is bytes.

Through a pipe, each number would be copied four times more.
"""

import pickle
from mmap import mmap
from typing import Any, NamedTuple

from pipekit.engine.transports.processes.pickles import dumps
from pipekit.engine.transports.processes.shared_memory import SharedBuffer

_ALIGNMENT = 64


class Parcel(NamedTuple):
    """A value on its way.

    Attributes:
        text: the value's bytes, without the numbers of its tensors.
        places: where these lie in the sender's buffer: start and size.
    """

    text: bytes
    places: tuple[tuple[int, int], ...]


class Sender:
    """Lays values into memory, one after another in the same place.

    Args:
        buffer: in which this process lays what it sends.
    """

    def __init__(self, buffer: SharedBuffer) -> None:
        self._buffer, self._start, self._room = buffer, 0, 0

    def parcel(self, value: object) -> Parcel:
        """Return a value on its way; the one before has to have been unpacked."""
        parts: list[pickle.PickleBuffer] = []
        text = dumps(value, parts.append)
        numbers = [part.raw() for part in parts]
        ends = [0]
        for each in numbers:
            ends.append(ends[-1] + each.nbytes + -each.nbytes % _ALIGNMENT)
        memory = self._memory(ends[-1])
        places = []
        for offset, each in zip(ends, numbers, strict=False):
            start = self._start + offset
            memory[start : start + each.nbytes] = each
            places.append((start, each.nbytes))
        return Parcel(text, tuple(places))

    def _memory(self, size: int) -> mmap:
        if size > self._room:
            self._start, self._room = self._buffer.allocate(size), size
        return self._buffer.map(self._start)


def unpacked(parcel: Parcel, buffer: SharedBuffer) -> Any:
    """Return the value of a parcel, copied out of its sender's buffer."""
    first = parcel.places[0][0] if parcel.places else 0
    memory = memoryview(buffer.map(first))
    numbers = [memory[start : start + size] for start, size in parcel.places]
    return pickle.loads(parcel.text, buffers=numbers)
