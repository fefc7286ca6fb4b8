"""What a worker process hands its parent: tensors lie in shared memory, the rest is bytes.

Through a pipe, each number would be copied four times more.
"""

import pickle
from mmap import mmap
from typing import Any, NamedTuple

from torch import Tensor

from pipekit.engine.transports.processes.pickles import Unpickler, as_tensor, dumps
from pipekit.engine.transports.processes.shared_memory import SharedBuffer

_ALIGNMENT = 64


class Parcel(NamedTuple):
    """A value on its way.

    Attributes:
        text: the value's bytes, without the numbers of its tensors; None: they are those of the
            last value.
        places: where these lie in the sender's buffer: start and size.
    """

    text: bytes | None
    places: tuple[tuple[int, int], ...]


class Sender:
    """Lays values into memory, one after another in the same place.

    Args:
        buffer: in which this process lays what it sends.
    """

    def __init__(self, buffer: SharedBuffer) -> None:
        self._buffer, self._start, self._room = buffer, 0, 0
        self._last: tuple[bytes, list[int]] = b"", []

    def parcel(self, value: object, again: bool = False) -> Parcel:
        """Return a value on its way; the one before has to have been unpacked.

        Args:
            value: what is sent.
            again: whether the last one is to be overwritten where it came to, if nothing but the
                numbers of its tensors has changed.
        """
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
        this = text, [each.nbytes for each in numbers]
        same, self._last = this == self._last, this
        return Parcel(None if again and same else text, tuple(places))

    def _memory(self, size: int) -> mmap:
        if size > self._room:
            self._start, self._room = self._buffer.allocate(size), size
        return self._buffer.map(self._start)


class Receiver:
    """Takes the values of one sender.

    Args:
        buffer: the sender's.
    """

    def __init__(self, buffer: SharedBuffer) -> None:
        self._buffer = buffer
        self._last: Any = None
        self._tensors: list[Tensor] = []  # of the last value, in the order of their numbers

    def unpacked(self, parcel: Parcel) -> Any:
        """Return the value of a parcel, copied out of its sender's buffer.

        If it is the last one but for its numbers, and is to overwrite it, these go where the last
        one's are: new memory takes longer to come by than to fill.
        """
        first = parcel.places[0][0] if parcel.places else 0
        memory = memoryview(self._buffer.map(first))
        numbers = [memory[start : start + size] for start, size in parcel.places]
        if parcel.text is None:
            for tensor, each in zip(self._tensors, numbers, strict=True):
                tensor.copy_(as_tensor(each, tensor.dtype, tensor.shape))
        else:
            reader = Unpickler(parcel.text, numbers)
            self._last, self._tensors = reader.load(), reader.tensors
        return self._last
