"""Mailboxes of processes on one machine: tensors lie in shared memory, pipes tell where.

A sender copies a message into a free slot of its buffer and writes a note of a few bytes to the
receiver's pipe; the receiver copies the message out and marks the slot free.  A slot keeps its form
(structure and layouts), so that only the first message of that form carries a description.
"""

import os
import struct
import tempfile
import weakref
from collections import deque
from collections.abc import Collection, Sequence
from mmap import mmap
from multiprocessing.connection import Connection, Pipe
from multiprocessing.reduction import DupFd
from selectors import EVENT_READ, EVENT_WRITE, DefaultSelector
from typing import Any, NamedTuple, Self, cast

import cloudpickle
import torch
from torch import Tensor

from pipekit.devices import CPU
from pipekit.engine.transport import Aborted
from pipekit.engine.transports.mailbox import Key, end_key
from pipekit.engine.transports.message_layout import Form, assemble, form_of, layouts, with_strides
from pipekit.host.unpickling import loads
from pipekit.trees import Tree, leaves, tree_map

# All notes have one size, and a pipe takes and gives them whole: it is far below PIPE_BUF.
_NOTE = struct.Struct("=?6q")  # described?, sender, start of the slot, key
_NOTES_AT_ONCE = 64 * _NOTE.size
_HEADER = struct.Struct("=?q")  # taken?, bytes of the description, which follows
_LEAST_BYTES = 4096
FREE, TAKEN = 0, 1
FIRST_BYTES = 1 << 20
ALIGNMENT = 64


class SharedBuffer:
    """A growing buffer that one process writes to and others read, each through its own map.

    It is a file without a name, which can be handed to a process that is being started, and is gone
    with the last of them, whatever ended it.
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
        self._map: mmap | None = None
        self._close = weakref.finalize(self, os.close, fd)

    def allocate(self, size: int) -> int:
        """Return where ``size`` more bytes begin; for the one process that writes."""
        start, end = self._used, os.fstat(self._fd).st_size
        if start + size > end:
            start = end  # so that nothing lies across the end of what others have mapped
            os.ftruncate(self._fd, end + max(end, size))
        self._used = start + size
        return start

    def map(self, start: int) -> mmap:
        """Return a map of the whole buffer in which what was allocated at ``start`` lies."""
        mapped = self._map  # another thread may be at it, too, and come to a smaller one
        if mapped is None or start >= len(mapped):
            mapped = self._map = mmap(self._fd, os.fstat(self._fd).st_size)
        return mapped

    def close(self) -> None:
        """Let go of the file here; maps in use, and other processes, keep it."""
        self._close()
        self._fd, self._map = -1, None


class Endpoint(NamedTuple):
    """A process's end of the connections; made by the process that starts the others."""

    reader: Connection | None  # which only itself has
    writer: Connection  # for the others
    buffer: SharedBuffer  # into which it lays what it sends

    @classmethod
    def new(cls) -> Self:
        reader, writer = Pipe(duplex=False)
        os.set_blocking(writer.fileno(), False)
        return cls(reader, writer, SharedBuffer())

    def close(self) -> None:
        if self.reader is not None:
            self.reader.close()
        self.writer.close()
        self.buffer.close()


def endpoints_for(own: Collection[int], endpoints: Sequence[Endpoint]) -> list[Endpoint]:
    """Return what a process gets of all endpoints: of the others' pipes only where to write.

    Else a pipe would outlive the process that reads it, and who writes to it would wait for ever.
    """
    return [p if i in own else p._replace(reader=None) for i, p in enumerate(endpoints)]


def close_others(index: int, endpoints: Sequence[Endpoint]) -> None:
    """Close, where the endpoints were made, the pipes' ends that only others use.

    So its own mailbox ends with the last of the others.
    """
    for i, endpoint in enumerate(endpoints):
        if i == index:
            endpoint.writer.close()
        elif endpoint.reader is not None:
            endpoint.reader.close()


class _Slot(NamedTuple):
    """A piece of a sender's buffer: header, description, tensors."""

    memory: mmap
    start: int
    capacity: int
    tensors: list[Tensor]

    @property
    def free(self) -> bool:
        return self.memory[self.start] == FREE


class SharedMailboxes:
    """Everybody's mailboxes, as the process with the endpoint ``index`` sees them.

    Worker 0 has the endpoint ``first``.
    """

    def __init__(self, index: int, endpoints: Sequence[Endpoint], first: int = 0) -> None:
        self._index, self._endpoints, self._first = index, endpoints, first
        self._slots: dict[tuple[int, Form], list[_Slot]] = {}
        self._notes: deque[tuple[Any, ...]] = deque()
        self._known: dict[tuple[int, int], tuple[mmap, Tree]] = {}  # slots by sender and start

    def put(self, worker: int, key: Key, message: Tree) -> None:
        """Put a message into shared memory, and a note into a pipe; Aborted: nobody reads it."""
        form = form_of(message)
        described = False
        slot = next((slot for slot in self._slots.get((worker, form), ()) if slot.free), None)
        if slot is None:
            slot, described = self._describe(worker, form), True
        for place, tensor in zip(slot.tensors, leaves(message), strict=True):
            place.copy_(tensor.detach())
        slot.memory[slot.start] = TAKEN
        note = _NOTE.pack(described, self._index, slot.start, *key)
        self._notify(self._endpoints[self._first + worker].writer, note)

    def tell_end(self, run: int, microbatch: int) -> None:
        """Let all others know that a run ends before a microbatch."""
        for place in range(len(self._endpoints)):
            if place != self._index:
                self.put(place - self._first, end_key(microbatch, run), ())

    def get(self) -> tuple[Key, Tree]:
        """Wait for the next message here, and copy it out; Aborted: nobody is left to send one."""
        while not self._notes:
            self._read()
        described, sender, start, *key = self._notes.popleft()
        if described:
            memory = self._endpoints[sender].buffer.map(start)
            _, length = _HEADER.unpack_from(memory, start)
            text = start + _HEADER.size
            form = loads(memory[text : text + length])
            tensors = assemble(form, iter(_views(form, memory, text + length)))
            self._known[sender, start] = memory, tensors
        memory, tensors = self._known[sender, start]
        message = tree_map(lambda t: with_strides(t.clone(), t.stride()), tensors)
        memory[start] = FREE
        return cast(Key, tuple(key)), message

    def clear(self) -> None:
        """Take everything out of this process's mailbox that has arrived."""
        with DefaultSelector() as mine:
            mine.register(self._own, EVENT_READ)
            while self._notes or mine.select(timeout=0):
                self.get()

    def close(self) -> None:
        self._slots.clear()
        self._known.clear()

    @property
    def _own(self) -> Connection:
        reader = self._endpoints[self._index].reader
        assert reader is not None
        return reader

    def _read(self) -> None:
        data = os.read(self._own.fileno(), _NOTES_AT_ONCE)
        if not data:
            raise Aborted("the other processes have ended")
        self._notes += _NOTE.iter_unpack(data)

    def _notify(self, pipe: Connection, note: bytes) -> None:
        while True:
            try:
                os.write(pipe.fileno(), note)
                return
            except BlockingIOError:
                # The receiver may itself be waiting for room, in our pipe.
                with DefaultSelector() as either:
                    either.register(pipe, EVENT_WRITE)
                    mine = either.register(self._own, EVENT_READ)
                    if (mine, EVENT_READ) in either.select():
                        self._read()
            except BrokenPipeError as error:
                raise Aborted("another process has ended") from error

    def _describe(self, worker: int, form: Form) -> _Slot:
        """Make a slot ready for messages of a form to a worker."""
        description = cloudpickle.dumps(form)
        numbers = sum(layout.extent + ALIGNMENT for layout in layouts(form))  # at most
        slot = self._room(_HEADER.size + len(description) + numbers)
        _HEADER.pack_into(slot.memory, slot.start, FREE, len(description))
        text = slot.start + _HEADER.size
        slot.memory[text : text + len(description)] = description
        slot = slot._replace(tensors=_views(form, slot.memory, text + len(description)))
        self._slots.setdefault((worker, form), []).append(slot)
        return slot

    def _room(self, size: int) -> _Slot:
        """Return a free slot, taken from whatever it was for, or a new one."""
        for key, slots in self._slots.items():
            for slot in slots:
                if slot.free and slot.capacity >= size:
                    slots.remove(slot)
                    if not slots:
                        del self._slots[key]
                    return slot
        # Powers of two, so that messages that grow little by little find room in old slots.
        capacity = max(_LEAST_BYTES, 1 << (size - 1).bit_length())
        buffer = self._endpoints[self._index].buffer
        start = buffer.allocate(capacity)
        return _Slot(buffer.map(start), start, capacity, [])


def _views(form: Form, memory: mmap, start: int) -> list[Tensor]:
    views = []
    for layout in layouts(form):
        start += -start % ALIGNMENT
        if layout.extent:
            count = layout.extent // layout.dtype.itemsize
            flat = torch.frombuffer(memory, dtype=layout.dtype, count=count, offset=start)
        else:
            flat = torch.empty(0, dtype=layout.dtype, device=CPU)
        views.append(flat.as_strided(layout.shape, layout.strides))
        start += layout.extent
    return views
