"""Objects and errors on their way from one process to another.

An object travels as bytes, with the numbers of its tensors beside them in shared memory: through a
pipe, weights take three times as long.  PyTorch's own way writes an archive for each tensor, which
takes 0.3 ms there and back.
"""

import io
import multiprocessing  # noqa: F401  # which gives the script's module its second name
import pickle
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate, pairwise
from typing import Any, NamedTuple, NoReturn

import cloudpickle
import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import is_parametrized

from pipekit.engine.assignment import NotBuilt
from pipekit.engine.transports.processes.shared_mailbox import SharedBuffer
from pipekit.host.unpickling import loads
from pipekit.trees import is_plain, sequence_like

# A process that multiprocessing has started has its script under this name, and workers have not.
cloudpickle.register_pickle_by_value(sys.modules["__mp_main__"])

_NO_MEMORY = (
    "a worker's process has no memory left: give it more, or less to hold (batches of fewer rows, "
    "recompute='always', more stages)"
)


class Parcel(NamedTuple):
    """An object on its way: its bytes, and where the numbers of its tensors lie, one by one."""

    text: bytes
    start: int
    sizes: Sequence[int]


class Sender:
    """Lays the numbers of objects into shared memory, one object after another in one place."""

    def __init__(self, buffer: SharedBuffer) -> None:
        self._buffer, self._start, self._room = buffer, 0, 0

    def parcel(self, value: object) -> Parcel:
        parts: list[pickle.PickleBuffer] = []
        text = dumps(value, parts.append)
        sizes = [part.raw().nbytes for part in parts]
        if sum(sizes) > self._room:
            self._start, self._room = self._buffer.allocate(sum(sizes)), sum(sizes)
        memory, stops = self._buffer.map(self._start), accumulate(sizes, initial=self._start)
        for part, (start, stop) in zip(parts, pairwise(stops), strict=True):
            memory[start:stop] = part.raw()
        return Parcel(text, self._start, sizes)


def unpacked(parcel: Parcel, buffer: SharedBuffer) -> Any:
    """Return the object of a parcel, copied out of its sender's buffer."""
    memory = memoryview(buffer.map(parcel.start))
    stops = accumulate(parcel.sizes, initial=parcel.start)
    numbers = [memory[start:stop] for start, stop in pairwise(stops)]
    return loads(parcel.text, numbers)


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
        if obj is torch.ops:  # a module of a class of its own, which code names
            return getattr, (torch, "ops")
        if hasattr(type(obj), "stays_here"):
            return NoPipeline, ()
        if isinstance(obj, tuple) and hasattr(obj, "_fields"):
            return sequence_like, (type(obj), tuple(obj)), getattr(obj, "__dict__", None) or None
        if isinstance(obj, nn.Module) and is_parametrized(obj):  # which torch refuses to pickle
            return object.__new__, (type(obj),), vars(obj)
        return super().reducer_override(obj)


class NoPipeline:
    """Stands for a pipeline in a worker's copy of what holds it."""

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(
            f"a worker process has no pipeline, of which it is asked {name!r}: use it in on_batch, "
            f"or between calls of train()"
        )


def _is_plain(tensor: Tensor) -> bool:
    """Return whether a tensor is its numbers, type and shape, and nothing else."""
    return (
        is_plain(tensor)
        and tensor.device.type == "cpu"
        and tensor.is_contiguous()
        and tensor.numel() > 0
        and not (tensor.requires_grad or tensor.is_conj() or tensor.is_neg() or vars(tensor))
    )


def _read(numbers: Any, dtype: torch.dtype, shape: torch.Size) -> Tensor:
    # A copy: operators may round otherwise where numbers are not aligned as PyTorch aligns them.
    return torch.frombuffer(numbers, dtype=dtype).reshape(shape).clone()


class RemoteTraceback(Exception):
    """The traceback of an exception in a worker process; the cause of the one raised here."""

    def __str__(self) -> str:
        return f"\n\n{self.args[0]}"


class TravellingError:
    """Arrives as an error, with its traceback as its cause, and its notes."""

    def __init__(self, error: BaseException) -> None:
        text = "".join(traceback.format_exception(error))
        self._parts = portable(error), text, getattr(error, "__notes__", None)

    def __reduce__(self) -> Any:
        return _arrived, self._parts


def _arrived(error: BaseException, text: str, notes: list[str] | None) -> BaseException:
    error.__cause__ = RemoteTraceback(text)
    if notes:  # not every exception takes them along
        error.__notes__ = notes
    return error


def portable(error: BaseException) -> BaseException:
    """Return the exception if it can travel, else one that says the same."""
    if isinstance(error, NotBuilt):
        return NotBuilt(portable(error.error))
    if isinstance(error, MemoryError) and not str(error):  # Python's own says nothing
        error.args = (_NO_MEMORY,)
    try:
        loads(cloudpickle.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error
