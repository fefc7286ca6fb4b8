"""Inboxes of processes on one machine: tensors lie in shared memory, pipes tell where.

A sender copies a message into a free slot of its slab and writes a note of a few bytes to the
receiver's pipe; the receiver copies the message out and marks the slot free, which wakes nobody.
A slot keeps its form (structure and layouts) from one message to the next, so that only the first
of that form carries a description.
"""

import os
import pickle
import struct
from collections import deque
from collections.abc import Sequence
from mmap import mmap
from multiprocessing.connection import Connection, Pipe
from selectors import EVENT_READ, EVENT_WRITE, DefaultSelector
from typing import NamedTuple, Self

import cloudpickle
import torch
from torch import Tensor

from pipekit.engine.transport import Aborted
from pipekit.engine.transports.mailbox import Key
from pipekit.engine.transports.message_layout import Form, assemble, form_of, layouts, with_strides
from pipekit.engine.transports.shared_memory import Slab
from pipekit.trees import Tree, leaves, tree_map

# All notes have one size, and a pipe takes and gives them whole: it is far below PIPE_BUF.
_NOTE = struct.Struct("=?5q")  # described?, sender, start of the slot, key
_NOTES_AT_ONCE = 64 * _NOTE.size
_HEADER = struct.Struct("=?q")  # taken?, bytes of the description, which follows
_ALIGNMENT = 64
_LEAST_BYTES = 4096
FREE, TAKEN = 0, 1


class Port(NamedTuple):
    """A process's side of the connections; made by the process that starts the others.

    Attributes:
        notes: where it reads what has arrived; only in the process itself.
        notify: where others tell it.
        slab: where it writes what it sends.
    """

    notes: Connection | None
    notify: Connection
    slab: Slab

    @classmethod
    def new(cls) -> Self:
        """Return a new port."""
        notes, notify = Pipe(duplex=False)
        os.set_blocking(notify.fileno(), False)
        return cls(notes, notify, Slab())

    def close(self) -> None:
        """Let go of it here, once the workers have it."""
        if self.notes is not None:
            self.notes.close()
        self.notify.close()
        self.slab.close()


def ports_for(index: int, ports: Sequence[Port]) -> list[Port]:
    """Return what a process gets of everybody's ports: of the others' pipes one end only.

    Else a pipe would outlive the process that reads it, and who writes to it would wait for ever.
    """
    return [p if i == index else p._replace(notes=None) for i, p in enumerate(ports)]


def let_go(index: int, ports: Sequence[Port]) -> None:
    """Close, in the process that made the ports, the pipes' ends that only others use.

    So its own inbox ends with the last of the others.
    """
    for i, port in enumerate(ports):
        if i == index:
            port.notify.close()
        elif port.notes is not None:
            port.notes.close()


class _Slot(NamedTuple):
    """A piece of a sender's slab: header, description, tensors."""

    memory: mmap
    start: int
    capacity: int
    tensors: list[Tensor]

    @property
    def free(self) -> bool:
        """Whether the receiver has copied out what was in it."""
        return self.memory[self.start] == FREE


class SharedInboxes:
    """Everybody's inboxes, as one process sees them.

    Args:
        index: this process.
        ports: see :func:`ports_for`.
    """

    def __init__(self, index: int, ports: Sequence[Port]) -> None:
        self._index, self._ports = index, ports
        self._slots: dict[tuple[int, Form], list[_Slot]] = {}
        self._notes: deque[tuple[bool, int, int, int, int, int]] = deque()
        self._known: dict[tuple[int, int], tuple[mmap, Tree]] = {}  # slots by sender and start

    def put(self, worker: int, key: Key, message: Tree) -> None:
        """See :class:`pipekit.engine.transports.mailbox.Inboxes`.

        Raises:
            Aborted: the other process is gone.
        """
        form = form_of(message)
        described = False
        slot = next((slot for slot in self._slots.get((worker, form), ()) if slot.free), None)
        if slot is None:
            slot, described = self._describe(worker, form), True
        for place, tensor in zip(slot.tensors, leaves(message), strict=True):
            place.copy_(tensor.detach())
        slot.memory[slot.start] = TAKEN
        self._notify(
            self._ports[worker].notify, _NOTE.pack(described, self._index, slot.start, *key)
        )

    def get(self) -> tuple[Key, Tree]:
        """See :class:`pipekit.engine.transports.mailbox.Inboxes`.

        Raises:
            Aborted: there is nobody left who could put anything into it.
        """
        while not self._notes:
            self._read()
        described, sender, start, kind, place, number = self._notes.popleft()
        if described:
            memory = self._ports[sender].slab.map(start)
            self._known[sender, start] = memory, _read_description(memory, start)
        memory, tensors = self._known[sender, start]
        message = tree_map(_copy, tensors)
        memory[start] = FREE
        return (kind, place, number), message

    @property
    def _own(self) -> Connection:
        notes = self._ports[self._index].notes
        assert notes is not None
        return notes

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
        slot = self._room(_HEADER.size + len(description) + _bytes(form))
        _HEADER.pack_into(slot.memory, slot.start, FREE, len(description))
        text = slot.start + _HEADER.size
        slot.memory[text : text + len(description)] = description
        views = _views(form, slot.memory, text + len(description))
        slot = slot._replace(tensors=views)
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
        slab = self._ports[self._index].slab
        start = slab.allocate(capacity)
        return _Slot(slab.map(start), start, capacity, [])


def _bytes(form: Form) -> int:
    """Return how many bytes at most :func:`_views` needs."""
    return sum(layout.extent + _ALIGNMENT for layout in layouts(form))


def _views(form: Form, memory: mmap, start: int) -> list[Tensor]:
    """Return tensors that lie in memory one behind the other, as the form says."""
    views = []
    for layout in layouts(form):
        start += -start % _ALIGNMENT
        if layout.extent:
            count = layout.extent // layout.dtype.itemsize
            flat = torch.frombuffer(memory, dtype=layout.dtype, count=count, offset=start)
        else:
            flat = torch.empty(0, dtype=layout.dtype)
        views.append(flat.as_strided(layout.shape, layout.strides))
        start += layout.extent
    return views


def _read_description(memory: mmap, start: int) -> Tree:
    """Return the tensors in a slot."""
    _, length = _HEADER.unpack_from(memory, start)
    text = start + _HEADER.size
    form = pickle.loads(memory[text : text + length])
    return assemble(form, iter(_views(form, memory, text + length)))


def _copy(tensor: Tensor) -> Tensor:
    return with_strides(tensor.clone(), tensor.stride())
