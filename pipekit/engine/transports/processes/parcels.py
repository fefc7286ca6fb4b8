"""Objects on their way between processes: as bytes, with the numbers of tensors beside them.

PyTorch's own way writes an archive for each tensor, which takes 0.3 ms there and back; through a
pipe, each number would be copied four times more than through shared memory.
"""

import io
import pickle
import sys
from collections.abc import Callable
from mmap import mmap
from types import FunctionType
from typing import Any, NamedTuple

import cloudpickle
import torch
from torch import Tensor

from pipekit.engine.transports.processes.shared_memory import SharedBuffer

_ALIGNMENT = 64
_BY_NAME = frozenset({"pipekit", "torch", "numpy", "builtins"})
"""Packages of which every process has the same."""


class Parcel(NamedTuple):
    """A value on its way.

    Attributes:
        text: the value's bytes, without the numbers of its tensors.
        places: where these lie in the sender's buffer: start and size.
    """

    text: bytes
    places: tuple[tuple[int, int], ...]


class Sender:
    """Lays values into shared memory, one after another in the same place."""

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


def dumps(value: object, beside: Callable[[pickle.PickleBuffer], object] | None = None) -> bytes:
    """Return a value's bytes; functions and classes that no module has are in it as well.

    ``beside`` is called with the numbers of each plain tensor, which are then not among the bytes.
    """
    file = io.BytesIO()
    _Pickler(file, protocol=5, buffer_callback=beside).dump(value)
    return file.getvalue()


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]  # it has no types
    @property
    def dispatch_table(self) -> dict[type, Callable[[Any], Any]]:
        """What cloudpickle's has, in one dictionary: its chain of two looks in Python code.

        Every object is looked up, and a layer is a dozen empty dictionaries of hooks.
        """
        found: dict[type, Callable[[Any], Any]] = {}
        for table in reversed(cloudpickle.Pickler.dispatch_table.maps):
            found |= table
        return found

    def reducer_override(self, obj: Any) -> Any:
        kind = type(obj)
        if kind is Tensor and _is_plain(obj):
            numbers: Any = obj.reshape(-1).view(torch.uint8).numpy()
            return _read, (pickle.PickleBuffer(numbers), obj.dtype, obj.shape)
        if (kind is FunctionType or issubclass(kind, type)) and not _goes_by_name(obj):
            return super().reducer_override(obj)
        return NotImplemented  # cloudpickle has no other cases


def _goes_by_name(obj: Any) -> bool:
    """Return whether a function or class is one of _BY_NAME's that another process can import.

    cloudpickle would find this out for any module, in ten times the time.
    """
    module = obj.__module__ or ""
    if module.partition(".")[0] not in _BY_NAME:
        return False
    return getattr(sys.modules.get(module), obj.__qualname__, None) is obj


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
