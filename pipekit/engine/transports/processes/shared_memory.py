"""Memory that processes share, and objects that travel through it.

An object travels as bytes, with the numbers of its tensors beside them in shared memory.  PyTorch's
own way writes an archive for each tensor, which takes 0.3 ms there and back; through a pipe, each
number would be copied four times more than through shared memory.
"""

import io
import mmap
import os
import pickle
import tempfile
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.reduction import DupFd
from typing import Any, NamedTuple

import cloudpickle
import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import is_parametrized

FIRST_BYTES = 1 << 20
ALIGNMENT = 64


class SharedBuffer:
    """A growing buffer that one process writes to and others read, each through its own map.

    It is a file without a name, which can be handed to a process that is being started, and is gone
    with the last of them, whatever ended it.  Pages that nobody has written take no memory.
    """

    def __init__(self) -> None:
        if hasattr(os, "memfd_create"):
            self._hold(os.memfd_create("pipekit"))
        else:
            with tempfile.TemporaryFile() as file:
                self._hold(os.dup(file.fileno()))
        os.ftruncate(self._fd, FIRST_BYTES)

    def __getstate__(self) -> object:
        return DupFd(self._fd)

    def __setstate__(self, fd: Any) -> None:
        self._hold(fd.detach())

    def _hold(self, fd: int) -> None:
        """Let go of the file with this object at the latest: an interrupt may keep it from more."""
        self._fd, self._used = fd, 0
        self._map: mmap.mmap | None = None
        self._close = weakref.finalize(self, os.close, fd)

    def allocate(self, size: int) -> int:
        """Return where ``size`` more bytes begin; for the one process that writes."""
        start, end = self._used, os.fstat(self._fd).st_size
        if start + size > end:
            start = end  # so that nothing lies across the end of what others have mapped
            os.ftruncate(self._fd, end + max(end, size))
        self._used = start + size
        return start

    def map(self, start: int) -> mmap.mmap:
        """Return a map of the whole buffer in which what was allocated at ``start`` lies."""
        mapped = self._map  # another thread may be at it, too, and come to a smaller one
        if mapped is None or start >= len(mapped):
            mapped = self._map = mmap.mmap(self._fd, os.fstat(self._fd).st_size)
        return mapped

    def close(self) -> None:
        """Let go of the file here; maps in use, and other processes, keep it."""
        self._close()
        self._fd, self._map = -1, None


class Parcel(NamedTuple):
    """An object on its way: its bytes, and where each tensor's numbers lie: start and size."""

    text: bytes
    places: tuple[tuple[int, int], ...]


class Sender:
    """Lays objects into shared memory, one after another in the same place."""

    def __init__(self, buffer: SharedBuffer) -> None:
        self._buffer, self._start, self._room = buffer, 0, 0

    def parcel(self, value: object) -> Parcel:
        """Return an object on its way; the one before has to have been unpacked."""
        parts: list[pickle.PickleBuffer] = []
        text = dumps(value, parts.append)
        places, size = [], 0
        for part in parts:
            places.append((size, part.raw().nbytes))
            size += places[-1][1] + -places[-1][1] % ALIGNMENT
        if size > self._room:
            self._start, self._room = self._buffer.allocate(size), size
        memory = self._buffer.map(self._start)
        places = [(self._start + offset, count) for offset, count in places]
        for part, (start, count) in zip(parts, places, strict=True):
            memory[start : start + count] = part.raw()
        return Parcel(text, tuple(places))


def unpacked(parcel: Parcel, buffer: SharedBuffer) -> Any:
    """Return the object of a parcel, copied out of its sender's buffer."""
    first = parcel.places[0][0] if parcel.places else 0
    memory = memoryview(buffer.map(first))
    numbers = [memory[start : start + size] for start, size in parcel.places]
    return pickle.loads(parcel.text, buffers=numbers)


def dumps(value: object, beside: Callable[[pickle.PickleBuffer], object] | None = None) -> bytes:
    """Return an object's bytes; functions and classes that no module has are in it as well.

    ``beside`` is called with the numbers of each plain tensor, which are then not among the bytes.
    """
    file = io.BytesIO()
    with said_if_refused():
        _Pickler(file, protocol=5, buffer_callback=beside).dump(value)
    return file.getvalue()


@contextmanager
def said_if_refused() -> Iterator[None]:
    """Say, as a TypeError, what to do with an object that no process can send to another."""
    try:
        yield
    except (TypeError, AttributeError, pickle.PicklingError) as error:
        raise TypeError(
            f"worker processes get copies of model, loss, optimizer and batches, in which "
            f"something cannot be pickled ({error}): make it where it is first used, import what "
            f"reads it from a file of its own, or use transport='threads'"
        ) from error


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]  # it has no types
    def reducer_override(self, obj: Any) -> Any:
        if type(obj) is Tensor and _is_plain(obj):
            numbers: Any = obj.reshape(-1).view(torch.uint8).numpy()
            return _read, (pickle.PickleBuffer(numbers), obj.dtype, obj.shape)
        if isinstance(obj, nn.Module) and is_parametrized(obj):  # which torch refuses to pickle
            return object.__new__, (type(obj),), vars(obj)
        return super().reducer_override(obj)


def _is_plain(tensor: Tensor) -> bool:
    """Return whether a tensor is its numbers, type and shape, and nothing else."""
    return (
        tensor.layout is torch.strided
        and tensor.device.type == "cpu"
        and tensor.is_contiguous()
        and tensor.numel() > 0
        and not (tensor.requires_grad or tensor.is_conj() or tensor.is_neg())
        and not tensor.is_quantized
        and not vars(tensor)
    )


def _read(numbers: Any, dtype: torch.dtype, shape: torch.Size) -> Tensor:
    # A copy: operators may round otherwise where numbers are not aligned as PyTorch aligns them.
    return torch.frombuffer(numbers, dtype=dtype).reshape(shape).clone()
